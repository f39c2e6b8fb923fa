#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs `ringfleet collectives` between workers on a test network and compares
# with the rate of its links; see usage.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: perf/network_bench.sh [--world N] [--gbit R] [--delay-us D]
                             [--burst-bytes B] [--bin DIR] [--pin] [--left]
                             [--json] -- OPTIONS

Starts one worker in each of N network namespaces [2], whose links carry R
Gbit/s each way [0: not limited] and delay everything by D us one way [0], runs
`ringfleet collectives OPTIONS` on them over gRPC and prints for every line:

  share     what a link carries each way, over what it can: bytes that a rank
            must send / p50 / (R x 1448 / 1514), for a link without delay. TCP
            puts 1448 bytes into an Ethernet frame of 1514 (14 Ethernet, 20
            IPv4, 32 TCP with timestamps), which is what the limit counts
  ideal us  D for each step that waits for the one before, and the bytes above
            at the payload rate. Steps: one_shot 1, two_shot 2, ring N - 1, or
            2 (N - 1) for all_reduce
  x ideal   p50 over that
  cores     of the machine that all workers together kept busy, by their own
            count; what the kernel does for the links is not all in it

--pin keeps each worker on CPUs of its own, as many as each can have, or on one,
in turns, where there are more workers; --left measures what of the CPUs is left
to a computation (perf/cpu_left.cc); --json prints the command's rows instead of
this table.

At the end comes the share of the machine's CPU time that nobody used meanwhile:
near 0, the machine was what bounded the figures.

Needs root, and build/bin with -DRINGFLEET_PERF=ON.
USAGE
}

# On a host: a worker that ends with host 0, which measures.
host() {
  local rank=$1 listen=$2 reached=$3 folder=$4 bin=$5
  shift 5
  ((rank > 0)) || exec 9<>"$folder/alive"
  local commas=${reached//[^,]/} cpus first each
  cpus=$(nproc)
  each=$((cpus / (${#commas} + 1)))
  ((each > 0)) || each=1
  first=$((rank * each % cpus))
  ${PIN_WORKERS:+taskset -c $first-$((first + each - 1))} \
    "$bin/ringfleet-worker" --rank "$rank" --listen "$listen" --insecure \
    --coordinator none --port-file "$folder/port.$rank" --parent-fd 3 \
    --log-file "$folder/log.$rank" --threads 1 3<"$folder/alive" 9>&- &
  if ((rank > 0)); then
    wait
    return
  fi
  local address i=0
  {
    echo "name: network-bench"
    echo "model: $folder"
    echo "security: {mode: insecure}"
    echo "coordinator: {host: 127.0.0.1, port: 50051}"
    echo "workers:"
    for address in ${reached//,/ }; do
      echo "- {host: host$i, address: ${address%:*}, port: ${address##*:}}"
      i=$((i + 1))
    done
  } >"$folder/cluster.yaml"
  local deadline=$((SECONDS + 60))
  until [[ $(find "$folder" -name 'port.*' -size +0 | wc -l) == "$i" ]]; do
    ((SECONDS < deadline)) || { cat "$folder"/log.* >&2; return 1; }
    sleep 0.1
  done
  head -1 /proc/stat >"$folder/cpu"
  ${LEFT:+"$bin/cpu_left" --} "$bin/ringfleet" collectives \
    --cluster "$folder/cluster.yaml" --transport grpc --json "$@" \
    >"$folder/rows.json"
  head -1 /proc/stat >>"$folder/cpu"
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
world=2 gbit=0 delay_us=0 burst_bytes=0 pin= left= json=
take_options "world gbit delay-us burst-bytes bin --" "pin left json" "$@"
[[ -z $pin ]] || export PIN_WORKERS=1
export LEFT=$left

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkfifo "$folder/alive"
"$bin/on_network" --hosts "$world" --gbit "$gbit" \
  --delay-us "$delay_us" --burst-bytes "$burst_bytes" -- "$root/perf/network_bench.sh" \
  --host "{rank}" "{listen}" "{reached}" "$folder" "$bin" "${rest[@]}"

if [[ -n $json ]]; then
  cat "$folder/rows.json"
  exit
fi

python3 - "$folder" "$world" "$gbit" "$delay_us" <<'END'
import json, sys

rows = json.load(open(sys.argv[1] + "/rows.json"))
world, gbit, delay = int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
rate = gbit * 1e9 / 8 * 1448 / 1514  # Bytes a second.
print("| op | algo | wire | world | bytes | p50 us | share | ideal us "
      "| x ideal | cores |\n|---|---|---|---|---|---|---|---|---|---|")
for row in rows:
    op, algo, sent = row["op"], row["algo"], row["wire_bytes"]
    if op == "all_reduce" and algo != "one_shot":
        sent *= 2 * (world - 1) / world
    elif op == "all_reduce":
        sent *= world - 1
    elif op != "broadcast":
        sent *= (world - 1) / world
    steps = {"one_shot": 1, "two_shot": 2}.get(algo, world - 1)
    if algo == "ring" and op == "all_reduce":
        steps *= 2
    p50 = row["p50_us"]
    wire = sent / rate * 1e6 if rate else 0
    ideal = steps * delay + wire
    cores = row["cpu_s_per_gb"] * row["bytes"] / 1e9 * world / (p50 * 1e-6)
    share = f"{wire / p50:.1%}" if rate and not delay else "-"
    times = f"{p50 / ideal:.2f}" if ideal else "-"
    print(f"| {op} | {algo} | {row['wire']} | {world} | {row['bytes']} "
          f"| {p50:.0f} | {share} | {ideal:.0f} | {times} | {cores:.2f} |")
    if row["wrong"]:
        sys.exit("network_bench: wrong sums")
before, after = ([int(x) for x in line.split()[1:9]]
                 for line in open(sys.argv[1] + "/cpu"))
spent = [b - a for a, b in zip(before, after)]
print(f"CPU: {(spent[3] + spent[4]) / sum(spent):.0%} idle, "
      f"{(spent[2] + spent[5] + spent[6]) / sum(spent):.0%} in the kernel")
END
