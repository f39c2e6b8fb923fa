#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints how long each worker idles between two steps, by a trace of
`ringfleet ... --trace FILE`: from the end of a step to the begin of the next.

--least drops steps shorter than so many milliseconds, such as those of a fleet
that has nothing to do. --json prints one object.

  ringfleet submit --cluster cluster.yaml -p "x" -n 200 --trace trace.json
  perf/step_gaps.py trace.json
"""
import argparse
import json


def gaps_of(events, least_us):
    """Microseconds between neighbouring steps of each rank."""
    steps = {}
    for event in events:
        if event.get("ph") == "X" and event.get("cat") == "step":
            steps.setdefault(event["pid"], []).append((event["ts"], event["dur"]))
    gaps = {}
    for rank, spans in sorted(steps.items()):
        spans.sort()
        gaps[rank] = [
            begin - (before + took)
            for (before, took), (begin, duration) in zip(spans, spans[1:])
            if took >= least_us and duration >= least_us
        ]
    return gaps


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--least", type=float, default=0, help="milliseconds of a step [0]")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with open(args.trace) as file:
        trace = json.load(file)
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    rows = []
    for rank, gaps in gaps_of(events, args.least * 1000).items():
        if gaps:
            rows.append({"rank": rank, "gaps": len(gaps), "p50_us": percentile(gaps, 0.5),
                         "p90_us": percentile(gaps, 0.9), "p99_us": percentile(gaps, 0.99)})
    if args.json:
        print(json.dumps({"ranks": rows}))
        return
    for row in rows:
        print(f"rank {row['rank']}: {row['gaps']} gaps, p50 {row['p50_us']:.0f} us, "
              f"p90 {row['p90_us']:.0f} us, p99 {row['p99_us']:.0f} us")


if __name__ == "__main__":
    main()
