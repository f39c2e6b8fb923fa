#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how soon a fleet answers after its coordinator was killed.

Two workers load a model once. Then the coordinator is killed with SIGKILL and
started again, --rounds times for each time of --away seconds that it is gone, and
as often again with experts moved before. Prints for each round, in milliseconds
from the start of the coordinator's process: until it listens, until the last
worker has registered, until the fleet is ready, and until a `ringfleet submit` of
one token has ended, which is started beside the coordinator. Then the bytes of
tensors that the workers have read since the kill.

  ringfleet synth --preset r1-slice --out /var/tmp/r1-slice
  perf/restart_time.py build/bin --model /var/tmp/r1-slice
"""

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from before_after import free_port

STAGES = {"listens": r"listening on", "registered": r"has registered",
          "ready": r": ready after"}


class RestartedFleet:
    def __init__(self, args, folder):
        self.args = args
        self.folder = folder
        self.port = free_port()
        self.cluster = os.path.join(folder, "fleet.yaml")
        data, expert, tensor = args.mesh.split("x")
        workers = int(data) * int(expert) * int(tensor)
        with open(self.cluster, "w") as f:
            f.write(f"name: restart\nmodel: {args.model}\n"
                    f"coordinator: {{port: {self.port}}}\n"
                    f"mesh: {{data: {data}, expert: {expert}, tensor: {tensor}}}\n"
                    "workers:\n" + "  - {port: 0}\n" * workers)
        self.starts = 0
        self.coordinator = None
        self.workers = [
            subprocess.Popen(
                [os.path.join(args.bin, "ringfleet-worker"), "--rank", str(rank),
                 "--listen", "127.0.0.1:0", "--coordinator",
                 f"127.0.0.1:{self.port}", "--threads", str(args.threads),
                 "--log-file", os.path.join(folder, f"worker{rank}.log")])
            for rank in range(workers)]

    def run(self, *options):
        return subprocess.run(
            [os.path.join(self.args.bin, "ringfleet"), options[0], "--cluster",
             self.cluster, *options[1:]], capture_output=True, text=True)

    def start(self):
        """Returns milliseconds by stage."""
        self.starts += 1
        log = os.path.join(self.folder, f"coordinator{self.starts}.log")
        began = time.time()
        self.coordinator = subprocess.Popen(
            [os.path.join(self.args.bin, "ringfleet-coordinator"), "--cluster",
             self.cluster, "--log-file", log])
        while True:
            answer = self.run("submit", "--prompt-ids", "5,6,7", "-n", "1",
                              "--temp", "0", "--ignore-eos", "--json")
            if answer.returncode == 0:
                break
            if time.time() - began > 900 or self.coordinator.poll() is not None:
                sys.exit(answer.stderr)
        times = {"first token": 1000 * (time.time() - began)}
        with open(log) as f:
            for line in f:
                for stage, words in STAGES.items():
                    if re.search(words, line):
                        at = datetime.datetime.strptime(
                            line.split()[0], "%Y-%m-%dT%H:%M:%S.%fZ").replace(
                                tzinfo=datetime.timezone.utc).timestamp()
                        times[stage] = 1000 * (at - began)
        return times, json.loads(answer.stdout)["ids"]

    def kill(self):
        self.coordinator.send_signal(signal.SIGKILL)
        self.coordinator.wait()

    def tensor_bytes_read(self):
        state = json.loads(self.run("status", "-o", "json").stdout)
        return sum(worker["tensor_bytes_read"] for worker in state["workers"])

    def stop(self):
        for process in [self.coordinator, *self.workers]:
            if process is not None:
                process.kill()
                process.wait()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", help="folder of binaries")
    parser.add_argument("--model", default="synth:r1-slice", help="[synth:r1-slice]")
    parser.add_argument("--mesh", default="1x2x1",
                        help="DATAxEXPERTxTENSOR [1x2x1]")
    parser.add_argument("--rounds", type=int, default=3, help="[3]")
    parser.add_argument("--away", default="0,5",
                        help="seconds between the kill and the start [0,5]")
    parser.add_argument("-t", "--threads", type=int, default=1,
                        help="of each worker [1]")
    args = parser.parse_args()

    stages = [*STAGES, "first token"]
    with tempfile.TemporaryDirectory() as folder:
        fleet = RestartedFleet(args, folder)
        try:
            times, ids = fleet.start()
            print(f"first start: {times['first token']:.0f} ms")
            print("| experts | away, s | " + " | ".join(stages) +
                  " | tensor bytes read |")
            print("|---" * (len(stages) + 3) + "|")
            for experts in ("where they began", "moved"):
                if experts == "moved":
                    fleet.run("score", "--ids", ",".join(["300"] * 400))
                    moved = fleet.run("rebalance", "-o", "json")
                    if moved.returncode != 0 or not json.loads(moved.stdout)["moved"]:
                        sys.exit(f"no experts moved: {moved.stdout} {moved.stderr}")
                for away in args.away.split(","):
                    for _ in range(args.rounds):
                        fleet.kill()
                        time.sleep(float(away))
                        times, again = fleet.start()
                        if again != ids:
                            sys.exit(f"token {again}, want {ids}")
                        print(f"| {experts} | {away} | " +
                              " | ".join(f"{times[s]:.0f}" for s in stages) +
                              f" | {fleet.tensor_bytes_read()} |", flush=True)
        finally:
            fleet.stop()


if __name__ == "__main__":
    main()
