#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what clients get of a full queue with `ringfleet bench`, in pairs.

A fleet of one worker stays loaded. In turns, `ringfleet bench` evaluates prompts
and generates tokens of --sequences sequences, and perf/serve_bench.py keeps as
many requests of the same lengths in flight over HTTP, --waves times as many in
all. Both count generated tokens a second, with the time of the prompts. Prints
the medians, and the median of the pairs' ratios with its 95 % interval from a
bootstrap.

  perf/closed_loop.py build/bin --sequences 8 --pairs 20
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from before_after import Fleet, free_port, interval


def bench(fleet, args):
    lengths = f"{args.input_len},{args.output_len}"
    rate = fleet.bench(["-p", "0", "-n", "0", "--prompt-then-gen", lengths, "-np",
                        str(args.sequences), "--no-memory-test", "--no-warmup"])
    return rate * args.output_len / (args.input_len + args.output_len)


def serve(port, args, seed):
    run = subprocess.run(
        [sys.executable, os.path.join(os.path.dirname(__file__), "serve_bench.py"),
         "--url", f"http://127.0.0.1:{port}", "--warmup", "0", "--json", "-",
         "--max-concurrency", str(args.sequences), "--seed", str(seed),
         "--num-prompts", str(args.waves * args.sequences),
         "--input-len", str(args.input_len), "--output-len", str(args.output_len)],
        capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr)
    return json.loads(run.stdout)["output_throughput"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", help="folder of binaries")
    parser.add_argument("--model", default="synth:r1-slice", help="[synth:r1-slice]")
    parser.add_argument("--sequences", type=int, default=8, help="[8]")
    parser.add_argument("--waves", type=int, default=2,
                        help="requests for each sequence, one after the other [2]")
    parser.add_argument("--input-len", type=int, default=64, help="[64]")
    parser.add_argument("--output-len", type=int, default=96, help="[96]")
    parser.add_argument("--pairs", type=int, default=20, help="[20]")
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)),
                        help="of the worker [the CPUs of this process]")
    args = parser.parse_args()

    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        model = args.model if ":" in args.model else os.path.abspath(args.model)
        fleet = Fleet(args.bin, os.path.join(folder, "fleet"), model, args.threads,
                      args.sequences, ("--http", f"127.0.0.1:{port}"))
        try:
            fleet.wait_ready(300)
            serve(port, args, seed=0)  # Memory grows in the first steps.
            for pair in range(args.pairs):
                if pair % 2 == 0:
                    expected = bench(fleet, args)
                    got = serve(port, args, seed=pair + 1)
                else:
                    got = serve(port, args, seed=pair + 1)
                    expected = bench(fleet, args)
                pairs.append((expected, got))
                print(f"pair {pair + 1} of {args.pairs}: bench {expected:.2f}, "
                      f"clients {got:.2f} tokens/s", file=sys.stderr)
        finally:
            fleet.stop()
    ratios = [got / expected for expected, got in pairs]
    low, high = interval(ratios)
    expected, got = (statistics.median(values) for values in zip(*pairs))
    print(f"{args.sequences} sequences, {len(pairs)} pairs: bench {expected:.2f}, clients "
          f"{got:.2f} tokens/s, ratio {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()
