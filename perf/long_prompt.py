#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times streams beside a long prompt, as clients see them.

A fleet of one worker evaluates a long prompt while nothing else runs. Then
--streams requests generate tokens for a while, a second long prompt arrives, and
after --delay seconds a short one. Prints, all in milliseconds:

  t_decode       time between two tokens of the streams before the long prompt
  ITL            time between two tokens of the streams beside it: p50, p90, p99
  TTFT idle      time to the long prompt's first token while nothing else runs
  TTFT beside    the same beside the streams, and what 1.2 times the idle time
                 over the part of a step that decodes leave is
  TTFT short     time to the short prompt's first token, and its part of a step

  perf/long_prompt.py build/bin
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import threading
import time
import urllib.request

from before_after import Fleet, free_port


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


class Stream(threading.Thread):
    """One streamed completion. `times` holds the time of each token."""

    def __init__(self, port, draw, prompt_n, tokens):
        super().__init__(daemon=True)
        self.times = []
        self.sent = None
        body = {"prompt": [draw.randint(100, 999) for _ in range(prompt_n)],
                "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
        self.request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        self.start()

    def run(self):
        self.sent = time.monotonic()
        with urllib.request.urlopen(self.request) as reply:
            for line in reply:
                if line.startswith(b"data: {"):
                    self.times.append(time.monotonic())

    def first(self):
        while not self.times:
            time.sleep(0.01)
        return (self.times[0] - self.sent) * 1000


def gaps(streams, begin, end):
    """Milliseconds between neighbouring tokens that came in the time."""
    found = []
    for stream in streams:
        times = [t for t in stream.times if begin <= t <= end]
        found += [(b - a) * 1000 for a, b in zip(times, times[1:])]
    return found


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", help="folder of binaries")
    parser.add_argument("--model", default="synth:r1-slice", help="[synth:r1-slice]")
    parser.add_argument("--streams", type=int, default=8, help="[8]")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of the long prompt [4096]")
    parser.add_argument("--tokens", type=int, default=400, help="of each stream [400]")
    parser.add_argument("--delay", type=float, default=15, help="[15]")
    parser.add_argument("--step-ms", type=int, default=400, help="[400]")
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)),
                        help="of the worker [the CPUs of this process]")
    args = parser.parse_args()

    draw = random.Random(5)
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        fleet = Fleet(args.bin, os.path.join(folder, "fleet"), args.model, args.threads,
                      args.streams + 8,
                      ("--http", f"127.0.0.1:{port}", "--step-ms", str(args.step_ms),
                       "--ctx-size", str(args.prompt + args.tokens + 64)))
        try:
            fleet.wait_ready(300)
            Stream(port, draw, 600, 4).join()  # Memory grows in the first steps.
            idle = Stream(port, draw, args.prompt, 1).first()
            streams = [Stream(port, draw, 64, args.tokens) for _ in range(args.streams)]
            for stream in streams:
                stream.first()
            begun = time.monotonic()
            while min(len(stream.times) for stream in streams) < 20:
                time.sleep(0.05)
            decode = statistics.median(gaps(streams, begun, time.monotonic()))
            arrived = time.monotonic()
            long = Stream(port, draw, args.prompt, 1)
            time.sleep(args.delay)
            short = Stream(port, draw, 20, 1).first()
            beside = long.first()
            itl = gaps(streams, arrived, arrived + beside / 1000)
        finally:
            fleet.stop()
    step = statistics.median(itl)
    bound = 1.2 * idle / max(1e-9, 1 - decode / args.step_ms)
    print(f"t_decode {decode:.0f}\n"
          f"ITL p50 {step:.0f}, p90 {percentile(itl, 0.9):.0f} "
          f"({percentile(itl, 0.9) / args.step_ms:.2f} of --step-ms), "
          f"p99 {percentile(itl, 0.99):.0f} ({percentile(itl, 0.99) / args.step_ms:.2f})\n"
          f"TTFT idle {idle:.0f}\n"
          f"TTFT beside {beside:.0f}, wanted at most {bound:.0f}\n"
          f"TTFT short {short:.0f}, {short / step:.1f} steps")


if __name__ == "__main__":
    main()
