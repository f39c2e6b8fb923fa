#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the tokens per second of two builds in interleaved pairs.

Both builds keep a fleet of one worker resident on this machine. `ringfleet
bench` asks them in turns, and every other pair begins with the second build.
Prints for each test the medians of both, and the median of the pairs' ratios
(AFTER over BEFORE) with its 95 % interval from a bootstrap.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

# Name of a test: its options of `ringfleet bench`.
TESTS = {
    "pp128": ["-p", "128", "-n", "0", "-np", "1"],
    "tg16": ["-p", "0", "-n", "16", "-np", "1"],
    "tg16, 8 sequences": ["-p", "0", "-n", "16", "-np", "8"],
}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Fleet:
    """A coordinator and one worker of a build, with their files in `folder`."""

    def __init__(self, bin_dir, folder, model, threads, parallel=8,
                 coordinator_options=(), workers=True):
        self.ringfleet = os.path.join(bin_dir, "ringfleet")
        self.processes = []
        port = free_port()
        os.makedirs(folder)
        self.cluster = os.path.join(folder, "fleet.yaml")
        with open(self.cluster, "w") as f:
            f.write(f"name: ringfleet\nmodel: {model}\n"
                    f"coordinator: {{host: 127.0.0.1, port: {port}}}\n"
                    "workers: [{host: 127.0.0.1, port: 1}]\n")
        self.start(folder, os.path.join(bin_dir, "ringfleet-coordinator"),
                   "--model", model, "--world", "1",
                   "--parallel", str(parallel),
                   "--listen", f"127.0.0.1:{port}", *coordinator_options)
        if not workers:
            return
        self.start(folder, os.path.join(bin_dir, "ringfleet-worker"),
                   "--rank", "0", "--listen", "127.0.0.1:0",
                   "--coordinator", f"127.0.0.1:{port}",
                   "--threads", str(threads))

    def start(self, folder, program, *options):
        log = os.path.join(folder, os.path.basename(program) + ".log")
        self.processes.append(subprocess.Popen(
            [program, *options, "--log-file", log]))

    def wait_ready(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            status = subprocess.run(
                [self.ringfleet, "status", "--cluster", self.cluster, "-o",
                 "json"], capture_output=True, text=True)
            if status.returncode == 0 and \
                    json.loads(status.stdout)["state"] == "ready":
                return
            time.sleep(0.5)
        sys.exit(f"{self.cluster}: the fleet is not ready after {seconds} s")

    def bench(self, options):
        run = subprocess.run(
            [self.ringfleet, "bench", "--cluster", self.cluster, "-r", "1",
             "-o", "json", *options], capture_output=True, text=True)
        if run.returncode != 0:
            sys.exit(run.stderr)
        return json.loads(run.stdout)[0]["avg_ts"]

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()


def interval(ratios):
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios)))
                     for _ in range(10000))
    return medians[250], medians[9749]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before", help="folder of binaries, e.g. old/build/bin")
    parser.add_argument("after", help="folder of binaries")
    parser.add_argument("--pairs", type=int, default=20, help="[20]")
    parser.add_argument("--model", default="synth:r1-slice",
                        help="[synth:r1-slice]")
    parser.add_argument("-t", "--threads", type=int,
                        default=len(os.sched_getaffinity(0)),
                        help="of each worker [the CPUs of this process]")
    args = parser.parse_args()

    figures = {test: [] for test in TESTS}
    fleets = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in ("before", "after"):
                fleets.append(Fleet(getattr(args, name),
                                    os.path.join(folder, name), args.model,
                                    args.threads))
            for fleet in fleets:
                fleet.wait_ready(300)
            for pair in range(args.pairs):
                for test, options in TESTS.items():
                    order = [0, 1] if pair % 2 == 0 else [1, 0]
                    rate = {i: fleets[i].bench(options) for i in order}
                    figures[test].append((rate[0], rate[1]))
                print(f"pair {pair + 1} of {args.pairs}", file=sys.stderr)
        finally:
            for fleet in fleets:
                fleet.stop()

    print("| test | pairs | before | after | ratio |\n|---|---|---|---|---|")
    for test, pairs in figures.items():
        ratios = [after / before for before, after in pairs]
        low, high = interval(ratios)
        before, after = (statistics.median(x) for x in zip(*pairs))
        print(f"| {test} | {len(pairs)} | {before:.1f} | {after:.1f} | "
              f"{statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}] |")


if __name__ == "__main__":
    main()
