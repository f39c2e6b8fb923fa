#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures a server of OpenAI's API as its clients see it.

Prompts are random ids, so that no two share a prefix, or begin with one of
several common prefixes. A closed loop keeps --max-concurrency requests in
flight. An open loop sends --request-rate of them a second, at random times
(Poisson). Figures and JSON keys have vLLM's names:

  TTFT  time to first token
  TPOT  time per output token after the first: (latency - TTFT) / (tokens - 1)
  ITL   time between two events of a stream
  E2EL  latency of a request

Needs Python alone. Examples:

  build/bin/ringfleet serve --model synth:r1-slice --parallel 8
  perf/serve_bench.py --max-concurrency 8 --num-prompts 32
  perf/serve_bench.py --request-rate 2 --input-len 1000 --prefixes 2 --prefix-len 900
"""

import argparse
import asyncio
import json
import random
import ssl
import statistics
import sys
import time
import urllib.parse
import urllib.request


def options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="the server, without /v1")
    parser.add_argument("--api-key", action="append", default=[],
                        help="an API key; of several, requests take one after the other")
    parser.add_argument("--cafile", help="trust this certificate, for https")
    parser.add_argument("--num-prompts", type=int, default=32, help="requests that count [32]")
    parser.add_argument("--warmup", type=int, default=1, help="requests before them [1]")
    parser.add_argument("--max-concurrency", type=int, default=8,
                        help="most requests in flight [8]; 0: no limit")
    parser.add_argument("--request-rate", type=float, default=0,
                        help="requests a second; 0: as soon as the concurrency allows [0]")
    parser.add_argument("--input-len", type=int, default=64, help="prompt tokens [64]")
    parser.add_argument("--output-len", type=int, default=96, help="new tokens [96]")
    parser.add_argument("--range-ratio", type=float, default=0,
                        help="lengths vary by this part, 0 to 0.9 [0]")
    parser.add_argument("--prefixes", type=int, default=0,
                        help="common prefixes, which prompts take in turn [0]")
    parser.add_argument("--prefix-len", type=int, default=0,
                        help="tokens of a common prefix, within --input-len [0]")
    parser.add_argument("--least-id", type=int, default=100, help="least id of a prompt [100]")
    parser.add_argument("--most-id", type=int, default=999, help="largest id of a prompt [999]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="write the figures there; -: to stdout")
    args = parser.parse_args()
    if args.prefix_len >= args.input_len:
        parser.error(f"--prefix-len {args.prefix_len}, want less than --input-len {args.input_len}")
    if args.prefixes > 0 and args.prefix_len < 1:
        parser.error("--prefixes needs --prefix-len")
    if not 0 <= args.range_ratio <= 0.9:
        parser.error(f"--range-ratio {args.range_ratio}, want 0 to 0.9")
    return args


class Request:
    """One request, and what came of it. Times are in seconds."""

    def __init__(self, prompt, tokens, key):
        self.prompt, self.tokens, self.key = prompt, tokens, key
        self.begin = 0.0
        self.first = 0.0
        self.last = 0.0
        self.gaps = []
        self.usage = {}
        self.error = ""

    def took(self, line):
        data = line[len(b"data: "):]
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise RuntimeError(event["error"]["message"])
        self.usage = event.get("usage") or self.usage
        if not event["choices"] or event["choices"][0].get("finish_reason"):
            return
        now = time.perf_counter()
        if self.first == 0:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now

    @property
    def output(self):
        return self.usage.get("completion_tokens", 0)

    @property
    def cached(self):
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)


def make_requests(args, model):
    choose = random.Random(args.seed)

    def ids(count):
        return [choose.randint(args.least_id, args.most_id) for _ in range(count)]

    def length(wanted):
        return max(1, round(wanted * choose.uniform(1 - args.range_ratio, 1 + args.range_ratio)))

    prefixes = [ids(args.prefix_len) for _ in range(args.prefixes)]
    requests = []
    for i in range(args.warmup + args.num_prompts):
        prefix = prefixes[i % args.prefixes] if prefixes else []
        rest = max(1, length(args.input_len) - len(prefix))
        key = args.api_key[i % len(args.api_key)] if args.api_key else ""
        body = {"model": model, "prompt": prefix + ids(rest), "max_tokens": length(args.output_len),
                "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}}
        requests.append(Request(json.dumps(body).encode(), body["max_tokens"], key))
    return requests


async def lines_of(reader, chunked):
    """Yields the lines of a response's body."""
    rest = b""
    while True:
        if chunked:
            size = int((await reader.readline()).split(b";")[0], 16)
            data = await reader.readexactly(size + 2)
            if size == 0:
                return
            data = data[:-2]
        else:
            data = await reader.read(65536)
            if not data:
                return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")


async def send(request, url, context):
    request.begin = time.perf_counter()
    writer = None
    try:
        reader, writer = await asyncio.open_connection(
            url.hostname, url.port or (443 if context else 80), ssl=context, limit=1 << 20)
        head = (f"POST {url.path.rstrip('/')}/v1/completions HTTP/1.1\r\nHost: {url.netloc}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(request.prompt)}\r\n"
                "Connection: close\r\n")
        if request.key:
            head += f"Authorization: Bearer {request.key}\r\n"
        writer.write(head.encode() + b"\r\n" + request.prompt)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        chunked = False
        while (line := await reader.readline()) not in (b"\r\n", b""):
            chunked |= line.lower().startswith(b"transfer-encoding: chunked")
        if status != 200:
            raise RuntimeError(f"status {status}: {(await reader.read(500)).decode(errors='replace')}")
        async for line in lines_of(reader, chunked):
            if line.startswith(b"data: "):
                request.took(line)
        if request.output == 0:
            raise RuntimeError("the stream ended without usage")
    except (OSError, RuntimeError, ValueError, asyncio.IncompleteReadError) as error:
        request.error = str(error) or type(error).__name__
    finally:
        if writer is not None:
            writer.close()


async def send_all(requests, args, url, context, shows):
    gate = asyncio.Semaphore(args.max_concurrency or len(requests) or 1)
    choose = random.Random(args.seed + 1)
    done = 0

    async def one(request):
        nonlocal done
        async with gate:
            await send(request, url, context)
        done += 1
        if shows:
            print(f"\r{done}/{len(requests)} requests", end="", file=sys.stderr, flush=True)

    tasks = []
    for request in requests:
        tasks.append(asyncio.create_task(one(request)))
        if args.request_rate > 0:
            await asyncio.sleep(choose.expovariate(args.request_rate))
    await asyncio.gather(*tasks)
    if shows:
        print(file=sys.stderr)


def percentile(values, part):
    """Linear interpolation between the closest ranks, as numpy does."""
    values = sorted(values)
    at = (len(values) - 1) * part
    below = int(at)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (at - below)


def figures(requests, seconds):
    good = [request for request in requests if not request.error]
    inputs = sum(request.usage["prompt_tokens"] for request in good)
    outputs = sum(request.output for request in good)
    out = {"duration": seconds, "completed": len(good), "failed": len(requests) - len(good),
           "total_input_tokens": inputs, "total_output_tokens": outputs,
           "total_cached_tokens": sum(request.cached for request in good),
           "request_throughput": len(good) / seconds, "output_throughput": outputs / seconds,
           "total_token_throughput": (inputs + outputs) / seconds}
    times = {
        "ttft": [request.first - request.begin for request in good],
        "tpot": [(request.last - request.first) / (request.output - 1)
                 for request in good if request.output > 1],
        "itl": [gap for request in good for gap in request.gaps],
        "e2el": [request.last - request.begin for request in good],
    }
    for name, values in times.items():
        if not values:
            continue
        ms = [1e3 * value for value in values]
        out |= {f"mean_{name}_ms": statistics.mean(ms), f"median_{name}_ms": statistics.median(ms),
                f"std_{name}_ms": statistics.pstdev(ms), f"p99_{name}_ms": percentile(ms, 0.99)}
    return out


def table(out):
    rows = [("Successful requests:", out["completed"]), ("Failed requests:", out["failed"]),
            ("Benchmark duration (s):", out["duration"]),
            ("Total input tokens:", out["total_input_tokens"]),
            ("Total cached tokens:", out["total_cached_tokens"]),
            ("Total generated tokens:", out["total_output_tokens"]),
            ("Request throughput (req/s):", out["request_throughput"]),
            ("Output token throughput (tok/s):", out["output_throughput"]),
            ("Total Token throughput (tok/s):", out["total_token_throughput"])]
    titles = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
    for name, title in titles.items():
        for kind, word in (("mean", "Mean"), ("median", "Median"), ("p99", "P99")):
            if f"{kind}_{name}_ms" in out:
                rows.append((f"{word} {title} (ms):", out[f"{kind}_{name}_ms"]))
    lines = ["============ Serving Benchmark Result ============"]
    for name, value in rows:
        lines.append(f"{name:<40} {value:<10.2f}" if isinstance(value, float)
                     else f"{name:<40} {value:<10}")
    return "\n".join(lines)


def served_model(args, context):
    head = {"Authorization": f"Bearer {args.api_key[0]}"} if args.api_key else {}
    request = urllib.request.Request(f"{args.url.rstrip('/')}/v1/models", headers=head)
    with urllib.request.urlopen(request, timeout=30, context=context) as response:
        return json.load(response)["data"][0]["id"]


def main():
    args = options()
    url = urllib.parse.urlsplit(args.url)
    context = ssl.create_default_context(cafile=args.cafile) if url.scheme == "https" else None
    try:
        model = served_model(args, context)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{args.url}: {error}")
    requests = make_requests(args, model)
    warmup, counted = requests[:args.warmup], requests[args.warmup:]
    asyncio.run(send_all(warmup, args, url, context, shows=False))
    begin = time.perf_counter()
    asyncio.run(send_all(counted, args, url, context, shows=sys.stderr.isatty()))
    out = figures(counted, time.perf_counter() - begin)
    errors = [request.error for request in warmup + counted if request.error]
    if errors:
        print(f"{len(errors)} requests failed, the first with: {errors[0]}", file=sys.stderr)
    if args.json == "-":
        print(json.dumps(out, indent=1))
    else:
        print(table(out))
        if args.json:
            with open(args.json, "w") as file:
                json.dump(out, file, indent=1)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
