#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures batches: their check, their rate, and what people feel of them.

check   Submits a file of --lines lines and --mebibytes MiB to a coordinator
        without workers. Prints the time until all lines are checked, and the
        largest growth of the coordinator's resident memory.
rate    Compares, in pairs, the generated tokens a second of a batch alone with
        those of `ringfleet bench` of the same lengths, prompts included.
beside  Compares, in pairs, the p99 of the times between tokens of --streams
        streams with and without a batch beside them, at --batch-step-ms.

Prints medians, and the median of the pairs' ratios with its 95 % interval from
a bootstrap. Examples:

  perf/batches.py check build/bin
  perf/batches.py rate build/bin --sequences 32 --pairs 20
  perf/batches.py beside build/bin --batch-step-ms 0 --pairs 20
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from before_after import Fleet, free_port, interval


def write_lines(path, count, input_len, output_len, seed):
    draw = random.Random(seed)
    with open(path, "w") as file:
        for _ in range(count):
            body = {"prompt": [draw.randrange(100, 1000) for _ in range(input_len)],
                    "max_tokens": output_len, "ignore_eos": True}
            file.write(json.dumps(body) + "\n")


def run(fleet, *options):
    done = subprocess.run([fleet.ringfleet, *options, "--cluster", fleet.cluster],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done.stdout


def submit(fleet, path):
    return json.loads(run(fleet, "submit", path))["id"]


def show(fleet, batch):
    return json.loads(run(fleet, "show", batch, "--json"))


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def serve(port, args, seed):
    done = subprocess.run(
        [sys.executable, os.path.join(os.path.dirname(__file__), "serve_bench.py"),
         "--url", f"http://127.0.0.1:{port}", "--warmup", "0", "--json", "-",
         "--max-concurrency", str(args.streams),
         "--num-prompts", str(args.waves * args.streams),
         "--input-len", str(args.input_len), "--output-len", str(args.output_len),
         "--seed", str(seed)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["p99_itl_ms"]


def summary(pairs):
    ratios = [b / a for a, b in pairs]
    low, high = interval(ratios)
    a, b = (statistics.median(values) for values in zip(*pairs))
    return a, b, f"{statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}], {len(pairs)} pairs"


def check(args, folder):
    path = os.path.join(folder, "lines.jsonl")
    size = args.mebibytes * 2**20 // args.lines
    with open(path, "w") as file:
        for i in range(args.lines):
            line = {"custom_id": f"line-{i}", "method": "POST", "url": "/v1/chat/completions",
                    "body": {"messages": [{"role": "user", "content": ""}], "max_tokens": 64}}
            words = (f"word{i} " * (size // 4))[:size - len(json.dumps(line)) - 2]
            line["body"]["messages"][0]["content"] = words
            file.write(json.dumps(line) + "\n")
    fleet = Fleet(args.bin, os.path.join(folder, "fleet"), args.model, 1, 8,
                  ("--state-dir", os.path.join(folder, "state")), workers=False)
    try:
        while subprocess.run([fleet.ringfleet, "status", "--cluster", fleet.cluster],
                             capture_output=True).returncode != 0:
            time.sleep(0.2)
        pid = fleet.processes[0].pid
        before = resident_bytes(pid)
        most = before
        ended = threading.Event()

        def watch():
            nonlocal most
            while not ended.is_set():
                most = max(most, resident_bytes(pid))
                time.sleep(0.01)

        watcher = threading.Thread(target=watch)
        watcher.start()
        begun = time.monotonic()
        batch = submit(fleet, path)
        took = time.monotonic() - begun
        ended.set()
        watcher.join()
        print(f"{args.lines} lines, {os.path.getsize(path) / 2**20:.1f} MiB: sent and checked in "
              f"{took:.2f} s, resident memory {(most - before) / 2**20:.1f} MiB more; "
              f"batch {show(fleet, batch)['state']}")
    finally:
        fleet.stop()


def rate(args, fleet, folder):
    pairs = []
    path = os.path.join(folder, "lines.jsonl")
    lengths = f"{args.input_len},{args.output_len}"

    def bench():
        all_tokens = fleet.bench(["-p", "0", "-n", "0", "--prompt-then-gen", lengths, "-np",
                                  str(args.sequences), "--no-memory-test", "--no-warmup"])
        return all_tokens * args.output_len / (args.input_len + args.output_len)

    def batch(seed):
        write_lines(path, args.waves * args.sequences, args.input_len, args.output_len, seed)
        begun = time.monotonic()
        name = submit(fleet, path)
        run(fleet, "show", name, "--follow")
        tokens = show(fleet, name)["predicted_n"]
        return tokens / (time.monotonic() - begun)

    for pair in range(args.pairs):
        if pair % 2 == 0:
            expected, got = bench(), batch(pair)
        else:
            got = batch(pair)
            expected = bench()
        pairs.append((expected, got))
        print(f"pair {pair + 1}: bench {expected:.2f}, batch {got:.2f} tokens/s", file=sys.stderr)
    a, b, ratio = summary(pairs)
    print(f"{args.sequences} sequences: bench {a:.2f}, batch {b:.2f} tokens/s, ratio {ratio}")


def beside(args, fleet, folder, port):
    pairs = []
    path = os.path.join(folder, "lines.jsonl")
    write_lines(path, 10000, args.input_len, 400, 1)
    for pair in range(args.pairs):
        def with_batch():
            name = submit(fleet, path)
            time.sleep(args.settle)
            p99 = serve(port, args, 2 * pair)
            run(fleet, "cancel", name)
            run(fleet, "show", name, "--output")
            return p99

        if pair % 2 == 0:
            alone = serve(port, args, 2 * pair + 1)
            got = with_batch()
        else:
            got = with_batch()
            alone = serve(port, args, 2 * pair + 1)
        pairs.append((alone, got))
        print(f"pair {pair + 1}: p99 alone {alone:.1f}, beside a batch {got:.1f} ms",
              file=sys.stderr)
    a, b, ratio = summary(pairs)
    print(f"{args.streams} streams, batch_step_ms {args.batch_step_ms}: p99 between tokens alone "
          f"{a:.1f} ms, beside a batch {b:.1f} ms, ratio {ratio}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "rate", "beside"])
    parser.add_argument("bin", help="folder of binaries")
    parser.add_argument("--model", default="", help="[tests' tiny-v3 for check, synth:r1-slice]")
    parser.add_argument("--lines", type=int, default=50000, help="[50000]")
    parser.add_argument("--mebibytes", type=int, default=199, help="[199]")
    parser.add_argument("--sequences", type=int, default=8, help="[8]")
    parser.add_argument("--waves", type=int, default=3,
                        help="lines for each sequence, requests for each stream [3]")
    parser.add_argument("--streams", type=int, default=4, help="[4]")
    parser.add_argument("--input-len", type=int, default=64, help="[64]")
    parser.add_argument("--output-len", type=int, default=96, help="[96]")
    parser.add_argument("--batch-step-ms", type=int, default=0, help="[0]")
    parser.add_argument("--settle", type=float, default=2.0,
                        help="seconds of a batch before the streams begin [2]")
    parser.add_argument("--pairs", type=int, default=20, help="[20]")
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)),
                        help="of the worker [the CPUs of this process]")
    args = parser.parse_args()
    if not args.model:
        tiny = os.path.join(os.path.dirname(__file__), "../tests/models/tiny-v3")
        args.model = os.path.abspath(tiny) if args.what == "check" else "synth:r1-slice"
    with tempfile.TemporaryDirectory() as folder:
        if args.what == "check":
            return check(args, folder)
        port = free_port()
        slots = args.sequences if args.what == "rate" else 16
        options = ["--http", f"127.0.0.1:{port}", "--state-dir", os.path.join(folder, "state")]
        if args.what == "beside":
            options += ["--batch-step-ms", str(args.batch_step_ms)]
        fleet = Fleet(args.bin, os.path.join(folder, "fleet"), args.model, args.threads, slots,
                      options)
        try:
            fleet.wait_ready(300)
            serve(port, argparse.Namespace(**{**vars(args), "streams": slots, "waves": 1}), 0)
            if args.what == "rate":
                rate(args, fleet, folder)
            else:
                beside(args, fleet, folder, port)
        finally:
            fleet.stop()


if __name__ == "__main__":
    main()
