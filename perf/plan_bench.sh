#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts predictions of `ringfleet plan`, fed by `ringfleet doctor`, beside
# measurements of `ringfleet bench`; see usage.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: perf/plan_bench.sh [--worlds LIST] [--batches LIST] [--depths LIST]
                          [--rounds K] [--model MODEL] [--bin DIR]

For each number of local workers of LIST [1,2], which share the machine's CPUs:
measures the machine with `ringfleet doctor`, then prompts of 512 tokens and
generation of --batches [1,32] sequences together at --depths [0,2048] with
`ringfleet bench`, and prints what `ringfleet plan --fleet` says of each of these
from what the doctor measured just before. K times [1]; medians, of the error
as well. A depth of 2048 for 32 sequences takes minutes to fill.

Needs build/bin.
USAGE
}

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/perf/options.sh"
worlds=1,2 batches=1,32 depths=0,2048 rounds=1 model=synth:r1-slice
bin=$root/build/bin
take_options "worlds batches depths rounds model bin" "" "$@"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for ((round = 0; round < rounds; ++round)); do
  for world in ${worlds//,/ }; do
    threads=$(($(nproc) / world))
    echo "round $((round + 1)) of $rounds: $world workers" >&2
    # A hypervisor may take seconds of both cores to take back what the workers
    # before have freed.
    sleep 15
    "$bin/ringfleet" doctor --local "$world" -t "$threads" --time-ms 1500 \
      -o json >"$folder/fleet.$round.$world.json"
    for tests in "-p 512 -n 0 -np 1 -d 0 -r 5" \
      "-p 0 -n 16 -np $batches -d $depths -r 1"; do
      sleep 15
      # shellcheck disable=SC2086
      "$bin/ringfleet" bench --model "$model" --local "$world" -t "$threads" \
        $tests -o jsonl >>"$folder/bench.$round.$world.jsonl" \
        2>"$folder/log" || { cat "$folder/log" >&2; exit 1; }
    done
  done
done

PYTHONPATH=$root/perf PYTHONDONTWRITEBYTECODE=1 python3 - "$folder" "$rounds" \
  "$worlds" "$model" "$bin/ringfleet" <<'END'
import json, sys
from statistics import median
from prediction import error, predicted, test_name

folder, rounds, worlds, model, ringfleet = sys.argv[1:]
found = {}  # (world, test, sequences): measured and predicted of each round.
rates = {}  # world: read, int8 of each round.
for round in range(int(rounds)):
    for world in map(int, worlds.split(",")):
        fleet = f"{folder}/fleet.{round}.{world}.json"
        workers = json.load(open(fleet))["workers"]
        rates.setdefault(world, []).append(
            [sum(w[key] for w in workers) for key in ("read_gbps", "int8_gops")])
        for line in open(f"{folder}/bench.{round}.{world}.jsonl"):
            row = json.loads(line)
            said = predicted(ringfleet, model, fleet, row, world)
            if said is not None:
                key = (world, test_name(row), row["n_parallel"])
                found.setdefault(key, []).append((row["avg_ts"], said))

for world, of_rounds in rates.items():
    read, int8 = (median(column) for column in zip(*of_rounds))
    print(f"{world} workers together: {read:.1f} GB/s, {int8:.0f} GOPS of int8")
print("\n| workers | test | sequences | measured t/s | predicted | error |\n"
      "|---|---|---|---|---|---|")
for (world, test, parallel), pairs in found.items():
    real, said = zip(*pairs)
    print(f"| {world} | {test} | {parallel} | {median(real):.1f} | "
          f"{median(said):.1f} | "
          f"{error(said, real)} |")
END
