#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the gain of moving experts, and its cost while it lasts; see usage.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: perf/balance_bench.sh [--workers N] [--slots S] [--rounds K] [--reps R]
                             [--model MODEL]

Starts N workers [2] of one thread, each on a core of its own, and measures
prompts of 512 tokens and decoding of 32 sequences, R times each [3], on a model
whose router prefers some experts [synth:r1-slice,zipf=1.2]:

  consecutive   mesh 1xNx1, every expert once, in order
  moving        the same while `ringfleet rebalance --slots S` [40] loads and
                moves experts
  balanced      the same behind it
  tensor        mesh 1x1xN: every worker has a part of each expert, so all are
                equally busy: the bound

K times in turn [1]. Prints tokens per second, the best of a round's
repetitions, the median over the rounds; their ratio to `tensor`; and what
`rebalance` said of the imbalance.

Needs build/bin.
USAGE
}

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/perf/options.sh"
bin=$root/build/bin
workers=2 slots=40 rounds=1 reps=3 model=synth:r1-slice,zipf=1.2
take_options "workers slots rounds reps model" "" "$@"

folder=$(mktemp -d)
pids=()
cleanup() {
  ((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true
  wait
  rm -rf "$folder"
}
trap cleanup EXIT

fleet() {
  "$bin/ringfleet" "$1" --coordinator "127.0.0.1:$(cat "$folder/port")" "${@:2}"
}

await_file() {
  local deadline=$((SECONDS + 60))
  until [[ -s $1 ]]; do
    ((SECONDS < deadline)) || { cat "$folder"/log.* >&2; exit 1; }
    sleep 0.1
  done
}

# A coordinator with the mesh $1, and workers that join it.
start() {
  pids=()
  rm -f "$folder/port"
  "$bin/ringfleet-coordinator" --listen 127.0.0.1:0 --model "$model" \
    --mesh "$1" --parallel 32 "${@:2}" --port-file "$folder/port" \
    --log-file "$folder/log.coordinator" &
  pids+=($!)
  await_file "$folder/port"
  local port rank deadline
  port=$(cat "$folder/port")
  for ((rank = 0; rank < workers; ++rank)); do
    taskset -c $((rank % $(nproc))) "$bin/ringfleet-worker" --rank "$rank" \
      --listen 127.0.0.1:0 --coordinator "127.0.0.1:$port" --threads 1 \
      --log-file "$folder/log.$rank" &
    pids+=($!)
  done
  deadline=$((SECONDS + 600))
  until fleet status 2>/dev/null | grep -q "^fleet .*: ready"; do
    if ((SECONDS > deadline)) || ! kill -0 "${pids[0]}"; then
      cat "$folder"/log.* >&2
      exit 1
    fi
    sleep 0.5
  done
}

stop() {
  kill "${pids[@]}"
  wait "${pids[@]}" || true
  pids=()
}

measure() {
  { fleet bench -o json -p 512 -n 0 -np 1 -r "$reps" >"$folder/$1.prompt.json" &&
    fleet bench -o json -p 0 -n 16 -np 32 -r "$reps" >"$folder/$1.decode.json"; } \
    2>"$folder/log.bench" || { cat "$folder"/log.* >&2; exit 1; }
}

for ((round = 0; round < rounds; ++round)); do
  echo "round $((round + 1)) of $rounds: $model, $slots slots" >&2
  start "1x${workers}x1"
  measure "$round.consecutive"
  echo "  moving" >&2
  fleet rebalance --slots "$slots" -o json >"$folder/$round.rebalance" &
  mover=$!
  # As long as experts move, and at least once.
  part=0
  while :; do
    measure "$round.moving.$part"
    part=$((part + 1))
    kill -0 "$mover" 2>/dev/null || break
  done
  wait "$mover"
  measure "$round.balanced"
  fleet rebalance --dry-run -o json >"$folder/$round.behind"
  stop
  start "1x1x$workers"
  measure "$round.tensor"
  stop
done

python3 - "$folder" "$rounds" <<'END'
import glob, json, statistics, sys

folder, rounds = sys.argv[1], int(sys.argv[2])
KINDS = ["consecutive", "moving", "balanced", "tensor"]
rates = {}  # By test, then kind: of each round.
for round in range(rounds):
    for kind in KINDS:
        best = {}
        # Experts move during the first ones.
        part = ".0" if kind == "moving" else ""
        for path in sorted(glob.glob(f"{folder}/{round}.{kind}{part}.*.json")):
            for row in json.load(open(path)):
                name = (f"pp{row['n_prompt']}" if row["n_prompt"]
                        else f"tg{row['n_gen']}")
                name += f", {row['n_parallel']} together"
                best[name] = max(row["samples_ts"])
        for name, value in best.items():
            rates.setdefault(name, {}).setdefault(kind, []).append(value)
print("| test | layout | t/s | over tensor |\n|---|---|---|---|")
for name, kinds in rates.items():
    for kind in KINDS:
        ratio = statistics.median(
            a / b for a, b in zip(kinds[kind], kinds["tensor"]))
        print(f"| {name} | {kind} | {statistics.median(kinds[kind]):.2f} | "
              f"{ratio:.3f} |")
for round in range(rounds):
    moved = json.load(open(f"{folder}/{round}.rebalance"))
    behind = json.load(open(f"{folder}/{round}.behind"))
    print(f"imbalance {moved['imbalance_before']:.3f}, expected behind the move "
          f"{moved['imbalance_after']:.3f}, measured there "
          f"{behind['imbalance_before']:.3f}; "
          f"{moved['bytes_to_load'] * 1e-9:.2f} GB loaded")
END
