#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures prompts on a test network by each way of sharing them out; see usage.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: perf/prefill_bench.sh [--world N] [--gbit R] [--delay-us D]
                             [--burst-bytes B] [--rounds K]
                             [--strategies LIST] [--model MODEL] [--bin DIR]
                             -- OPTIONS

Starts one worker of one thread in each of N network namespaces [2], whose links
carry R Gbit/s each way [1] and delay everything by D us one way [0], and a
coordinator beside the first; measures `ringfleet bench OPTIONS` with each
--prefill-strategy of LIST [replicated,sequence_parallel] in turn, K times [3],
over gRPC. Prints tokens per second of every test, best and median, beside what
`ringfleet plan` says of the workers that `ringfleet doctor` measured before
each round (median, as its error is); then the same over the first strategy's,
in the same round (median).

  perf/prefill_bench.sh --world 2 -- -p 512,2048 -n 16 -np 1,32 -d 0 -r 1

Needs root, and build/bin built with -DRINGFLEET_PERF=ON.
USAGE
}

# On a host: a worker that ends with host 0, which measures.
host() {
  local rank=$1 listen=$2 reached=$3 folder=$4 bin=$5 model=$6 strategies=$7
  local rounds=$8
  shift 8
  local first=${reached%%,*}
  local coordinator=${first%:*}:50051
  ((rank > 0)) || exec 9<>"$folder/alive"
  "$bin/ringfleet-worker" --rank "$rank" --listen "$listen" --insecure \
    --coordinator "$coordinator" --parent-fd 3 \
    --advertise "$(cut -d, -f $((rank + 1)) <<<"$reached")" \
    --log-file "$folder/log.$rank" --threads 1 3<"$folder/alive" 9>&- &
  if ((rank > 0)); then
    wait
    return
  fi
  local world=0 address round strategy daemon deadline
  {
    echo "model: $model"
    echo "coordinator: {host: ${first%:*}, port: 50051}"
    echo "workers:"
    for address in ${reached//,/ }; do
      echo "  - {host: ${address%:*}, port: ${address##*:}}"
      world=$((world + 1))
    done
    echo "security: {mode: insecure}"
    echo "transport: grpc"  # As hosts of their own have it.
  } >"$folder/cluster.yaml"
  for ((round = 0; round < rounds; ++round)); do
    ((round == 0)) || sleep 15
    deadline=$((SECONDS + 60))
    until "$bin/ringfleet" doctor --cluster "$folder/cluster.yaml" \
      --time-ms 1500 -o json >"$folder/fleet.$round.json" \
      2>"$folder/log.doctor"; do
      if ((SECONDS > deadline)); then
        cat "$folder"/log.* >&2
        exit 1
      fi
      sleep 0.5
    done
    for strategy in ${strategies//,/ }; do
      setpriv --pdeathsig TERM "$bin/ringfleet-coordinator" \
        --listen "$coordinator" --insecure \
        --world "$world" --model "$model" --prefill-strategy "$strategy" \
        --transport grpc --parallel 32 --log-file "$folder/log.coordinator" 9>&- &
      daemon=$!
      deadline=$((SECONDS + 300))
      until "$bin/ringfleet" status --coordinator "$coordinator" \
        2>/dev/null | grep -q "^fleet .*: ready"; do
        if ((SECONDS > deadline)) || ! kill -0 "$daemon"; then
          cat "$folder"/log.* >&2
          exit 1
        fi
        sleep 0.5
      done
      sleep 15  # As in plan_bench.sh.
      "$bin/ringfleet" bench --coordinator "$coordinator" -o json "$@" \
        >"$folder/$round.$strategy.json" 2>"$folder/log.bench" ||
        { cat "$folder/log.bench" "$folder"/log.* >&2; exit 1; }
      kill "$daemon"
      wait "$daemon" || true
    done
  done
  exec 9>&-
  wait
}

if [[ ${1:-} == --host ]]; then
  shift
  host "$@"
  exit
fi

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/perf/options.sh"
bin=$root/build/bin
world=2 gbit=1 delay_us=0 burst_bytes=0 rounds=3 model=synth:r1-slice
strategies=replicated,sequence_parallel
take_options \
  "world gbit delay-us burst-bytes rounds strategies model bin --" "" "$@"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkfifo "$folder/alive"
"$bin/on_network" --timeout 7200 --hosts "$world" --gbit "$gbit" \
  --delay-us "$delay_us" --burst-bytes "$burst_bytes" -- \
  "$root/perf/prefill_bench.sh" --host \
  "{rank}" "{listen}" "{reached}" "$folder" "$bin" "$model" "$strategies" \
  "$rounds" "${rest[@]}"

PYTHONPATH=$root/perf PYTHONDONTWRITEBYTECODE=1 python3 - "$folder" \
  "$strategies" "$rounds" "$bin/ringfleet" "$model" "$world" <<'END'
import json, sys
from operator import truediv
from statistics import median
from prediction import error, predicted, test_name

folder, strategies, rounds, ringfleet, model, world = sys.argv[1:]
strategies = strategies.split(",")
fleets = [f"{folder}/fleet.{round}.json" for round in range(int(rounds))]
# Workers hold their weights from the first round on.
free = [worker["memory_gib"] for worker in json.load(open(fleets[0]))["workers"]]
for fleet in fleets:
    found = json.load(open(fleet))
    for worker, gib in zip(found["workers"], free):
        worker["memory_gib"] = gib
    json.dump(found, open(fleet, "w"))
    network = found.get("network")
    if network:
        print(f"doctor: {network['latency_us']:.0f} us, "
              f"{network['gbit']:.2f} Gbit/s")
print()

rates = {}  # By test and sequences, then strategy: of each round.
plans = {}  # The same: what plan says.
for strategy in strategies:
    for round, fleet in enumerate(fleets):
        for row in json.load(open(f"{folder}/{round}.{strategy}.json")):
            test = (test_name(row), row["n_parallel"])
            rates.setdefault(test, {}).setdefault(strategy, []).append(
                row["avg_ts"])
            plans.setdefault(test, {}).setdefault(strategy, []).append(
                predicted(ringfleet, model, fleet, row, int(world), strategy))
print("| test | sequences | strategy | t/s, best / median | plan | error "
      f"| over {strategies[0]} | plan |\n|---|---|---|---|---|---|---|---|")
for (test, parallel), of_test in rates.items():
    base = of_test[strategies[0]]
    for strategy, own in of_test.items():
        said = plans[test, parallel][strategy]
        first = plans[test, parallel][strategies[0]]
        shown = (f"{median(said):.1f} | {error(said, own)}"
                 if all(said) else "- | -")
        shown += f" | {median(map(truediv, own, base)):.2f} | "
        shown += (f"{median(map(truediv, said, first)):.2f}"
                  if all(said) and all(first) else "-")
        print(f"| {test} | {parallel} | {strategy} | {max(own):.1f} / "
              f"{median(own):.1f} | {shown} |")
END
