#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the CPU time that a coordinator takes for one step.

A fleet of one worker decodes 32 sequences at once, for three kinds of clients:
  grpc  each sequence has a client of its own, `ringfleet submit`
  http  each sequence is a stream of events of /v1/completions
  none  detached jobs whose tokens nobody receives
The time of a short run is subtracted from that of a long one, so that
connections and prompts do not count. Several builds take turns. Prints for each
kind and build the median of the rounds, and all rounds.
"""

import argparse
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from before_after import Fleet, free_port

SEQUENCES = 32
SHORT, LONG = 8, 968  # Tokens of each sequence: about as many steps.


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stream_over_grpc(fleet, tokens):
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


def stream_over_http(fleet, tokens):
    selector = selectors.DefaultSelector()
    for i in range(SEQUENCES):
        body = json.dumps({"prompt": [0, 318, 287, i], "max_tokens": tokens,
                           "ignore_eos": True, "temperature": 0,
                           "stream": True})
        client = socket.create_connection(("127.0.0.1", fleet.http_port))
        client.sendall((
            "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: "
            f"application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        ).encode())
        selector.register(client, selectors.EVENT_READ, bytearray())
    while selector.get_map():
        for key, _ in selector.select():
            piece = key.fileobj.recv(1 << 16)
            del key.data[:-64]  # The end is longer than no piece.
            key.data.extend(piece)
            if not piece:
                sys.exit(f"the server closed a stream after {key.data!r}")
            if b"data: [DONE]" in key.data:
                selector.unregister(key.fileobj)
                key.fileobj.close()


def detach(fleet, tokens):
    for i in range(SEQUENCES):
        subprocess.run(
            [fleet.ringfleet, "submit", "--cluster", fleet.cluster,
             "--detach", "--prompt-ids", f"0,318,287,{i}", "-n", str(tokens),
             "--ignore-eos", "--temp", "0"],
            stdout=subprocess.DEVNULL, check=True)
    url = f"http://127.0.0.1:{fleet.http_port}/metrics"
    while True:
        with urllib.request.urlopen(url) as reply:
            if re.search(r"num_requests_running{.*} 0\n",
                         reply.read().decode()):
                return
        time.sleep(0.5)


CLIENTS = {"grpc": stream_over_grpc, "http": stream_over_http, "none": detach}


def micros_of_step(fleet, clients):
    """Returns the coordinator's CPU time of a step of all sequences."""
    pid = fleet.processes[0].pid

    def run(tokens):
        begun = cpu_seconds(pid)
        CLIENTS[clients](fleet, tokens)
        return cpu_seconds(pid) - begun

    short = run(SHORT)
    return 1e6 * (run(LONG) - short) / (LONG - SHORT)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bin_dirs", nargs="+", metavar="BIN_DIR",
                        help="folder of a build's binaries, e.g. build/bin")
    parser.add_argument("--rounds", type=int, default=5, help="[5]")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS,
                        default=list(CLIENTS), help="[all]")
    parser.add_argument("--model", default="tests/models/tiny-v3",
                        help="[tests/models/tiny-v3]")
    args = parser.parse_args()

    figures = {(kind, bin_dir): [] for kind in args.clients
               for bin_dir in args.bin_dirs}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            for build, bin_dir in enumerate(args.bin_dirs):
                port = free_port()
                fleet = Fleet(bin_dir, os.path.join(folder, f"{build}.{number}"),
                              os.path.abspath(args.model), threads=1,
                              parallel=SEQUENCES, coordinator_options=(
                                  "--http", f"127.0.0.1:{port}"))
                fleet.http_port = port
                try:
                    fleet.wait_ready(60)
                    for kind in args.clients:
                        figures[kind, bin_dir].append(
                            micros_of_step(fleet, kind))
                finally:
                    fleet.stop()
    for (kind, bin_dir), micros in figures.items():
        rounds = " ".join(f"{value:.0f}" for value in micros)
        print(f"{kind}, {bin_dir}: {statistics.median(micros):.0f} us of CPU a "
              f"step of {SEQUENCES} sequences ({rounds})")


if __name__ == "__main__":
    main()
