#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prompts on a test network, by each way of sharing them out; see usage.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: perf/prefill_bench.sh [--world N] [--gbit R] [--delay-us D]
                             [--burst-bytes B] [--rounds K]
                             [--strategies LIST] [--model MODEL] -- OPTIONS

Starts one worker of one thread in each of N network namespaces [2], whose links
carry R Gbit/s each way [1] and delay everything by D us one way [0], and a
coordinator beside the first; measures `ringfleet bench OPTIONS` with each
--prefill-strategy of LIST [replicated,sequence_parallel] in turn, K times [3],
over gRPC. Prints tokens per second of every test, best and median, and over the
first strategy's of the same round (median); of prompts also that ratio as
`ringfleet plan` predicts it, for hosts that share this machine's cores.

  perf/prefill_bench.sh --world 2 -- -p 512,2048 -n 0 -r 1

Needs root, and build/bin with -DRINGFLEET_PERF=ON.
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
  {
    echo "model: $model"
    echo "coordinator: {host: ${first%:*}, port: 50051}"
    echo "workers: [{address: 127.0.0.1}]"
    echo "security: {mode: insecure}"
  } >"$folder/cluster.yaml"
  local world round strategy daemon deadline
  world=$(tr ',' '\n' <<<"$reached" | wc -l)
  for ((round = 0; round < rounds; ++round)); do
    for strategy in ${strategies//,/ }; do
      setpriv --pdeathsig TERM "$bin/ringfleet-coordinator" \
        --listen "$coordinator" --insecure \
        --world "$world" --model "$model" --prefill-strategy "$strategy" \
        --transport grpc --parallel 1 --log-file "$folder/log.coordinator" 9>&- &
      daemon=$!
      deadline=$((SECONDS + 300))
      until "$bin/ringfleet" status --cluster "$folder/cluster.yaml" \
        2>/dev/null | grep -q "^fleet .*: ready"; do
        if ((SECONDS > deadline)) || ! kill -0 "$daemon"; then
          cat "$folder"/log.* >&2
          exit 1
        fi
        sleep 0.5
      done
      "$bin/ringfleet" bench --cluster "$folder/cluster.yaml" -o json "$@" \
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
bin=$root/build/bin
world=2 gbit=1 delay=0 burst=0 rounds=3 model=synth:r1-slice
strategies=replicated,sequence_parallel
while (($# > 0)); do
  case "$1" in
    --world) world=${2:?--world needs a number} ;;
    --gbit) gbit=${2:?--gbit needs a number} ;;
    --delay-us) delay=${2:?--delay-us needs a number} ;;
    --burst-bytes) burst=${2:?--burst-bytes needs a number} ;;
    --rounds) rounds=${2:?--rounds needs a number} ;;
    --strategies) strategies=${2:?--strategies needs a list} ;;
    --model) model=${2:?--model needs a model} ;;
    --)
      shift
      break
      ;;
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
mkfifo "$folder/alive"
"$bin/on_network" --hosts "$world" --gbit "$gbit" --delay-us "$delay" \
  --burst-bytes "$burst" -- "$root/perf/prefill_bench.sh" --host "{rank}" \
  "{listen}" "{reached}" "$folder" "$bin" "$model" "$strategies" "$rounds" "$@"

python3 - "$folder" "$strategies" "$rounds" "$bin" "$model" "$world" "$gbit" \
  "$delay" <<'END'
import json, os, statistics, subprocess, sys

folder, strategies, rounds = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
bin, model, world, gbit, delay = sys.argv[4:9]


# Tokens per second of one thread a host, 383 GOPS and 18 GB/s where it has a
# core for itself.
def predicted(tokens):
    share = min(1, os.cpu_count() / int(world))
    plan = json.loads(subprocess.run(
        [bin + "/ringfleet", "plan", "--model", model, "--hosts", world,
         "--memory", "1024", "--threads", "1", "--gops", str(383 * share),
         "--bandwidth", str(18 * share), "--network", gbit, "--latency",
         str(30 + float(delay)), "--context", str(tokens), "-o", "json"],
        check=True, stdout=subprocess.PIPE).stdout)
    rates = {"auto": plan["prefill_tps"], "sequence_parallel": plan["prefill_tps"]}
    for other in plan["alternatives"]:
        if " prefill, " in other["name"]:
            rates[other["name"].split()[0]] = other["prefill_tps"]
    return rates


rates = {}  # By strategy, then test: tokens per second of each round.
for strategy in strategies:
    for round in range(rounds):
        for row in json.load(open(f"{folder}/{round}.{strategy}.json")):
            test = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
            rates.setdefault(strategy, {}).setdefault(test, []).append(
                row["avg_ts"])
print("| test | strategy | t/s, best / median | over "
      f"{strategies[0]} | plan |\n|---|---|---|---|---|")
for test in rates[strategies[0]]:
    base = rates[strategies[0]][test]
    plan = predicted(int(test[2:])) if test.startswith("pp") else {}
    for strategy in strategies:
        own = rates[strategy][test]
        ratio = statistics.median(a / b for a, b in zip(own, base))
        said = (f"{plan[strategy] / plan[strategies[0]]:.2f}" if plan else "-")
        print(f"| {test} | {strategy} | {max(own):.1f} / "
              f"{statistics.median(own):.1f} | {ratio:.2f} | {said} |")
END
