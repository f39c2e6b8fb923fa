#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures one model under several meshes of the same workers; see usage.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: perf/mesh_bench.sh [--local N] [--meshes LIST] [--rounds K] [--model MODEL]
                          [-- BENCH OPTIONS]

Measures each mesh DATAxEXPERTxTENSOR of LIST [1x1x2,1x2x1,2x1x1] of N local
workers [2] with `ringfleet bench` [-p 512 -n 16 -np 1,32 -d 0 -r 2], one after
the other and K times in turn [2]. Prints tokens per second, the median over the
rounds of a round's best repetition, and the median of its ratio to the first
mesh in the same round.

Needs build/bin.
USAGE
}

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/perf/options.sh"
local=2 meshes=1x1x2,1x2x1,2x1x1 rounds=2 model=synth:r1-slice
options=(-p 512 -n 16 -np 1,32 -d 0 -r 2)
take_options "local meshes rounds model --" "" "$@"
((${#rest[@]} == 0)) || options=("${rest[@]}")

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
IFS=, read -ra list <<<"$meshes"
for ((round = 0; round < rounds; ++round)); do
  for mesh in "${list[@]}"; do
    echo "round $((round + 1)) of $rounds: $mesh" >&2
    "$root/build/bin/ringfleet" bench --model "$model" --local "$local" \
      --mesh "$mesh" "${options[@]}" -o json >"$folder/$round.$mesh.json" \
      2>"$folder/log" || { cat "$folder/log" >&2; exit 1; }
  done
done

python3 - "$folder" "$rounds" "${list[@]}" <<'END'
import json, statistics, sys

folder, rounds, meshes = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
rates = {}  # By test, then mesh: of each round.
for round in range(rounds):
    for mesh in meshes:
        for row in json.load(open(f"{folder}/{round}.{mesh}.json")):
            test = (f"pp{row['n_prompt']}" if row["n_prompt"]
                    else f"tg{row['n_gen']}")
            name = f"{test} @ d{row['n_depth']}, {row['n_parallel']} together"
            rates.setdefault(name, {}).setdefault(mesh, []).append(
                max(row["samples_ts"]))
print(f"| test | mesh | t/s | over {meshes[0]} |\n|---|---|---|---|")
for name, by_mesh in rates.items():
    for mesh in meshes:
        ratio = statistics.median(
            a / b for a, b in zip(by_mesh[mesh], by_mesh[meshes[0]]))
        print(f"| {name} | {mesh} | {statistics.median(by_mesh[mesh]):.2f} | "
              f"{ratio:.3f} |")
END
