#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `ringfleet plan` predicts from `ringfleet doctor`'s measurements, beside
# what `ringfleet bench` measures; see usage.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: perf/plan_bench.sh [--worlds LIST] [--batches LIST] [--depths LIST]
                          [--rounds K] [--model MODEL] [--bin DIR]

For each number of local workers of LIST [1,2], which share the machine's CPUs:
measures the machine with `ringfleet doctor`, then prompts of 512 tokens and
generation of --batches [1,32] sequences together at --depths [0,2048] with
`ringfleet bench`, and prints what `ringfleet plan --fleet` says of each of these
from what the doctor measured just before. K times [1]; the error is that of the
medians. A depth of 2048 for 32 sequences takes minutes to fill.

Needs build/bin.
USAGE
}

root=$(cd "$(dirname "$0")/.." && pwd)
worlds=1,2 batches=1,32 depths=0,2048 rounds=1 model=synth:r1-slice
bin=$root/build/bin
while (($# > 0)); do
  case "$1" in
    --worlds) worlds=${2:?--worlds needs a list} ;;
    --batches) batches=${2:?--batches needs a list} ;;
    --depths) depths=${2:?--depths needs a list} ;;
    --rounds) rounds=${2:?--rounds needs a number} ;;
    --model) model=${2:?--model needs a model} ;;
    --bin) bin=${2:?--bin needs a folder} ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
  shift 2
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for ((round = 0; round < rounds; ++round)); do
  for world in ${worlds//,/ }; do
    threads=$(($(nproc) / world))
    echo "round $((round + 1)) of $rounds: $world workers" >&2
    "$bin/ringfleet" doctor --local "$world" -t "$threads" --time-ms 1500 \
      -o json >"$folder/fleet.$round.$world.json"
    "$bin/ringfleet" bench --model "$model" --local "$world" -t "$threads" \
      -p 512 -n 16 -np "$batches" -d "$depths" -r 1 -o json \
      >"$folder/bench.$round.$world.json" 2>"$folder/log" ||
      { cat "$folder/log" >&2; exit 1; }
  done
done

python3 - "$folder" "$rounds" "$worlds" "$model" "$bin/ringfleet" <<'END'
import json, statistics, subprocess, sys

folder, rounds, worlds, model, ringfleet = sys.argv[1:]


def predicted(fleet, world, row):
    """Tokens per second of a row of bench, under its mesh."""
    prompt = row["n_prompt"] > 0
    context = row["n_depth"] + (row["n_prompt"] if prompt else row["n_gen"] // 2)
    plan = json.loads(subprocess.check_output([
        ringfleet, "plan", "--model", model, "--fleet", fleet, "--context",
        str(context), "--batch", str(row["n_parallel"]), "-o", "json"]))
    mesh = {"data": 1, "expert": 1, "tensor": world}
    for option in [plan, *plan["alternatives"]]:
        if option["mesh"] == mesh:
            return option["prefill_tps" if prompt else "decode_tps"]
    raise SystemExit(f"no plan for tensor {world}")


found = {}  # (world, test): measured and predicted of each round.
rates = {}  # world: read, int8 of each round.
for round in range(int(rounds)):
    for world in map(int, worlds.split(",")):
        fleet = f"{folder}/fleet.{round}.{world}.json"
        workers = json.load(open(fleet))["workers"]
        rates.setdefault(world, []).append(
            [sum(w[key] for w in workers) for key in ("read_gbps", "int8_gops")])
        for row in json.load(open(f"{folder}/bench.{round}.{world}.json")):
            # One prompt at a time, from its first token on: what plan means.
            if row["n_prompt"] and (row["n_depth"] or row["n_parallel"] > 1):
                continue
            test = (f"pp{row['n_prompt']}" if row["n_prompt"]
                    else f"tg{row['n_gen']} @ d{row['n_depth']}")
            key = (world, test, row["n_parallel"])
            found.setdefault(key, []).append(
                (row["avg_ts"], predicted(fleet, world, row)))

for world, of_rounds in rates.items():
    read, int8 = (statistics.median(column) for column in zip(*of_rounds))
    print(f"{world} workers together: {read:.1f} GB/s, {int8:.0f} GOPS of int8")
print("\n| workers | test | sequences | measured t/s | predicted | error |\n"
      "|---|---|---|---|---|---|")
for (world, test, parallel), pairs in found.items():
    real, said = (statistics.median(column) for column in zip(*pairs))
    print(f"| {world} | {test} | {parallel} | {real:.1f} | {said:.1f} | "
          f"{100 * (said / real - 1):+.0f} % |")
END
