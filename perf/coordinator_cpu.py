#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the CPU time that a coordinator takes for one step.

A fleet of one worker decodes 32 sequences at once, each for a client of its
own (`ringfleet submit`). The time of a short run is subtracted from that of a
long one, so that connections and prompts do not count. Several builds take
turns. Prints for each build the median of the rounds, and all rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

from before_after import Fleet

SEQUENCES = 32
SHORT, LONG = 8, 968  # Tokens of each sequence: about as many steps.


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(fleet, tokens):
    """Returns the coordinator's CPU seconds while it serves all sequences."""
    pid = fleet.processes[0].pid
    begun = cpu_seconds(pid)
    clients = [
        subprocess.Popen(
            [fleet.ringfleet, "submit", "--cluster", fleet.cluster,
             "--prompt-ids", f"0,318,287,{i}", "-n", str(tokens),
             "--ignore-eos", "--temp", "0"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for i in range(SEQUENCES)]
    for client in clients:
        _, errors = client.communicate()
        if client.returncode != 0:
            sys.exit(errors)
    return cpu_seconds(pid) - begun


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bin_dirs", nargs="+", metavar="BIN_DIR",
                        help="folder of a build's binaries, e.g. build/bin")
    parser.add_argument("--rounds", type=int, default=5, help="[5]")
    parser.add_argument("--model", default="tests/models/tiny-v3",
                        help="[tests/models/tiny-v3]")
    args = parser.parse_args()

    figures = {bin_dir: [] for bin_dir in args.bin_dirs}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            for number, bin_dir in enumerate(args.bin_dirs):
                path = os.path.join(folder, f"{number}.{len(figures[bin_dir])}")
                fleet = Fleet(bin_dir, path, os.path.abspath(args.model),
                              threads=1, parallel=SEQUENCES)
                try:
                    fleet.wait_ready(60)
                    short = run(fleet, SHORT)
                    figures[bin_dir].append(
                        1e6 * (run(fleet, LONG) - short) / (LONG - SHORT))
                finally:
                    fleet.stop()
    for bin_dir, micros in figures.items():
        rounds = " ".join(f"{value:.0f}" for value in micros)
        print(f"{bin_dir}: {statistics.median(micros):.0f} us of CPU a step of "
              f"{SEQUENCES} sequences ({rounds})")


if __name__ == "__main__":
    main()
