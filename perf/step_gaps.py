#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints how long each worker idles between two steps, by a trace of
`ringfleet ... --trace FILE`: from the end of a step to the begin of the next.

--least drops steps shorter than so many milliseconds, such as those of a fleet
that has nothing to do. --switches names the kernel's record of who got a core,
and prints who had the cores in the longest hundredth of the gaps: for a fleet on
this host. --json prints one object.

  ringfleet submit --cluster cluster.yaml -p "x" -n 200 --trace trace.json
  perf/step_gaps.py trace.json

The record, as root, with tracefs at /sys/kernel/tracing:

  cd /sys/kernel/tracing && echo mono >trace_clock && echo 65536 >buffer_size_kb
  echo 1 >events/sched/sched_switch/enable     # Then the run, and at its end:
  echo 0 >events/sched/sched_switch/enable; cat trace >switches.txt
"""
import argparse
import collections
import json
import re


SWITCH = re.compile(r"\[(\d+)\].*? (\d+\.\d+): sched_switch: .* ==> "
                    r"next_comm=(.*) next_pid=(\d+)")


def switches_of(path):
    """For each CPU, who got it when: (microseconds, name) by the steady clock."""
    cpus = collections.defaultdict(list)
    with open(path) as file:
        for line in file:
            found = SWITCH.search(line)
            if found:
                name = "nobody" if found[4] == "0" else found[3]
                cpus[int(found[1])].append((float(found[2]) * 1e6, name))
    return cpus


def holders(cpus, begin, end):
    """Microseconds for which each name had a core in the time, summed over CPUs."""
    held = collections.Counter()
    for switches in cpus.values():
        for (at, name), (until, _) in zip(switches, switches[1:] + [(end, "")]):
            held[name] += max(0.0, min(until, end) - max(at, begin))
    return {name: round(us) for name, us in held.most_common() if us >= 0.5}


def gaps_of(events, least_us):
    """Gaps between neighbouring steps of each rank: (microseconds, begin)."""
    steps = {}
    for event in events:
        if event.get("ph") == "X" and event.get("cat") == "step":
            steps.setdefault(event["pid"], []).append((event["ts"], event["dur"]))
    gaps = {}
    for rank, spans in sorted(steps.items()):
        spans.sort()
        gaps[rank] = [
            (begin - (before + took), before + took)
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
    parser.add_argument("--switches", help="sched_switch events of ftrace, clock mono")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with open(args.trace) as file:
        trace = json.load(file)
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    cpus = switches_of(args.switches) if args.switches else {}
    rows = []
    for rank, gaps in gaps_of(events, args.least * 1000).items():
        if not gaps:
            continue
        times = [took for took, _ in gaps]
        row = {"rank": rank, "gaps": len(gaps), "p50_us": percentile(times, 0.5),
               "p90_us": percentile(times, 0.9), "p99_us": percentile(times, 0.99)}
        if args.switches:
            zero = trace["otherData"]["began_monotonic_us"]
            longest = sorted(gaps, reverse=True)[:max(1, len(gaps) // 100)]
            row["longest"] = [{"us": round(took),
                               "held_us": holders(cpus, zero + begin, zero + begin + took)}
                              for took, begin in longest]
        rows.append(row)
    if args.json:
        print(json.dumps({"ranks": rows}))
        return
    for row in rows:
        print(f"rank {row['rank']}: {row['gaps']} gaps, p50 {row['p50_us']:.0f} us, "
              f"p90 {row['p90_us']:.0f} us, p99 {row['p99_us']:.0f} us")
        for gap in row.get("longest", []):
            held = ", ".join(f"{name} {us}" for name, us in gap["held_us"].items())
            print(f"  {gap['us']} us: the cores were with {held}")


if __name__ == "__main__":
    main()
