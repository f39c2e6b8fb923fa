#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures a fleet whose latent cache holds a part of what its sequences need.

--sequences clients ask for long answers at once: first with a cache for all of
them, then with one for --part of them, then as many clients as that one holds.
Prints generated tokens a second, what was evaluated again, and the longest and
the shortest answer's time.

  perf/small_cache.py build/bin --sequences 32 --part 0.6
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

from before_after import Fleet, free_port

BLOCK = 128  # Positions.


def run(args, positions, clients):
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        fleet = Fleet(args.bin, os.path.join(folder, "fleet"), args.model, args.threads,
                      args.sequences, ("--http", f"127.0.0.1:{port}", "--ctx-size", str(args.context),
                                       "--cache-positions", str(positions)))
        try:
            fleet.wait_ready(300)
            done = subprocess.run(
                [sys.executable, os.path.join(os.path.dirname(__file__), "serve_bench.py"),
                 "--url", f"http://127.0.0.1:{port}", "--warmup", "0", "--json", "-",
                 "--max-concurrency", str(clients), "--num-prompts", str(args.sequences),
                 "--input-len", str(args.input_len), "--output-len", str(args.output_len)],
                capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(done.stderr)
            figures = json.loads(done.stdout)
            status = json.loads(subprocess.run(
                [fleet.ringfleet, "status", "--cluster", fleet.cluster, "-o", "json"],
                capture_output=True, text=True, check=True).stdout)
            return figures, status["cache"]
        finally:
            fleet.stop()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", help="folder of binaries")
    parser.add_argument("--model", default="synth:r1-slice", help="[synth:r1-slice]")
    parser.add_argument("--sequences", type=int, default=32, help="[32]")
    parser.add_argument("--part", type=float, default=0.6, help="[0.6]")
    parser.add_argument("--input-len", type=int, default=64, help="[64]")
    parser.add_argument("--output-len", type=int, default=320, help="[320]")
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)),
                        help="of the worker [the CPUs of this process]")
    args = parser.parse_args()
    blocks = -(-(args.input_len + args.output_len) // BLOCK)
    args.context = blocks * BLOCK
    need = args.sequences * args.context
    part = int(args.part * need) // BLOCK * BLOCK
    fits = part // args.context
    first = None
    for name, positions, clients in (("all", need, args.sequences),
                                     (f"{args.part:.0%} of the need", part, args.sequences),
                                     ("as many as fit", part, fits)):
        figures, cache = run(args, positions, clients)
        rate = figures["output_throughput"]
        first = first or rate
        generated = args.sequences * args.output_len
        print(f"{name}: {clients} clients, {positions} positions: {rate:.1f} tokens/s "
              f"({rate / first:.2f}), {cache['preemptions']} preemptions, "
              f"{cache['recomputed_positions'] / generated:.2f} evaluated again for each "
              f"generated, p99 of an answer {figures['p99_e2el_ms'] / 1000:.1f} s, "
              f"median {figures['median_e2el_ms'] / 1000:.1f} s", flush=True)


if __name__ == "__main__":
    main()
