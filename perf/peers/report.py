#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the table of two programs that measured the same tests turn by turn.

usage: report.py --peer NAME --ours NAME PEER_FILE OUR_FILE

The files hold the JSON lines of llama-bench, llama-batched-bench and
`ringfleet bench`, several rounds one behind the other.
"""

import argparse
import json
import statistics


def test_of(row):
    """(servers, sequences, name) and tokens/s of a line."""
    if "pl" in row:  # Of llama-batched-bench.
        return (1, row["pl"], f"tg{row['tg']} @ d{row['pp']}"), row["speed_tg"]
    name = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
    if row.get("n_depth"):
        name += f" @ d{row['n_depth']}"
    servers = row.get("world", 1)
    if "RPC" in row.get("backends", "") and row.get("n_gpu_layers", 0) == 99:
        servers = 2
    return (servers, row.get("n_parallel", 1), name), row["avg_ts"]


def rounds(path):
    """{test: [tokens/s of each round]}"""
    found = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("{"):
                test, speed = test_of(json.loads(line))
                found.setdefault(test, []).append(speed)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--ours", required=True)
    parser.add_argument("peer_file")
    parser.add_argument("our_file")
    arguments = parser.parse_args()
    peer, ours = rounds(arguments.peer_file), rounds(arguments.our_file)
    print(f"| servers | sequences | test | {arguments.peer}, t/s | "
          f"{arguments.ours}, t/s | ratio | least, largest |")
    print("|---:|---:|---|---:|---:|---:|---|")
    for test, theirs in peer.items():
        if test not in ours:
            continue
        ratios = [b / a for a, b in zip(theirs, ours[test])]
        theirs, mine = (statistics.median(x) for x in (theirs, ours[test]))
        print(f"| {test[0]} | {test[1]} | {test[2]} | {theirs:.2f} | "
              f"{mine:.2f} | {statistics.median(ratios):.2f} | "
              f"{min(ratios):.2f}, {max(ratios):.2f} |")


if __name__ == "__main__":
    main()
