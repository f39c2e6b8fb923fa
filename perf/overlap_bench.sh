#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures how much of an exchange hides behind the product that it is fused
# with, over links of a test network; see usage.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: perf/overlap_bench.sh [--worlds "2 4"] [--rows M,M] [--ratios "1 2"]
                       [--gbit R] [--shapes "q_b gate_up o"] [--wire W]
                       [--algo A] [--seconds S] [--bin DIR]

For each world size and each product of a layer of R1 (int8 weights, one thread
a worker, each on its share of the CPUs, one worker in each network namespace):
measures the product alone without a limit of the links, sets the links' rate so
that the exchange alone should take 1/ratio of that, or to --gbit, and prints
what `ringfleet collectives` finds there. An eighth of what a rank sends, 16 to
128 KiB (with --gbit 64 KB times R), passes at once, and packets have half of it,
at most 64 KiB, as network cards take them: a timer sends each one, which takes
27 us of a computation on a virtual machine. Sums travel as bfloat16, as models
have them by default, or as --wire says, and by --algo.

  compute, comm  the product alone, the exchange alone, until all workers have
                 done theirs, as the next two
  c/c            compute over comm, as found
  unfused        one after the other
  fused          both together; its four figures alternate
  overlap        1 - (fused - compute) / comm (as the OSU benchmarks count);
                 at most c/c where that is below 1
  gain           unfused over fused; at most 2
  CPU            what the exchange alone takes of a worker's CPUs, or of the one
                 that it shares, from computations on all of them while it runs
                 (perf/cpu_left.cc), the kernel's part of the emulated links
                 included
  / bound        fused over the larger of comm and compute + CPU: a core that
                 sends does not multiply; below 1 where workers have a second
                 one for that

  q_b      all_gather_matmul      1536 -> 24576
  gate_up  all_gather_matmul      7168 -> 36864, of a dense layer
  o        matmul_reduce_scatter  16384 -> 7168

Needs root, and build/bin with -DRINGFLEET_PERF=ON.
USAGE
}

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/perf/options.sh"
worlds="2 4" rows=128,512,2048 ratios=1.2 shapes="q_b gate_up o" wire=bf16
seconds=4 bin=$root/build/bin gbit= algo=auto
take_options "worlds rows ratios gbit shapes wire algo seconds bin" "" "$@"
wanted=$gbit
[[ -z $wanted ]] || ratios=1

# Rows of a run: world, Gbit/s, burst, operation and shape, rows of X, seconds.
measure() {
  local world=$1 gbit=$2 burst=$3 shape=$4 m=$5 time=$6 what
  local reduction=auto
  [[ $shape != o ]] || reduction=$algo
  case "$shape" in
    q_b) what="--op all_gather_matmul --k 1536 --n 24576" ;;
    gate_up) what="--op all_gather_matmul --k 7168 --n 36864" ;;
    o) what="--op matmul_reduce_scatter --k 16384 --n 7168" ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
  "$root/perf/network_bench.sh" --world "$world" --gbit "$gbit" \
    --burst-bytes "$burst" --bin "$bin" --pin --json -- $what --m "$m" \
    --wire "$wire" --algo "$reduction" --poll block --threads 1 --seconds "$time" \
    --timeout 120
}

# The time in ms that the exchange of a run, alone, takes of a core from a
# computation:
# world, Gbit/s, burst, shape, bytes that travel of all ranks together,
# iterations.
transfer_cpu() {
  local world=$1 gbit=$2 burst=$3 shape=$4 bytes=$5 iterations=$6 op=all_gather
  local way=ring
  if [[ $shape == o ]]; then
    op=reduce_scatter
    [[ $algo == ring ]] || way=one_shot
  fi
  "$root/perf/network_bench.sh" --world "$world" --gbit "$gbit" \
    --burst-bytes "$burst" --bin "$bin" --pin --left -- --op "$op" --algo "$way" \
    --bytes "$((bytes / 4 * 4))" --wire f32 --poll block --seconds "$seconds" \
    --iterations "$iterations" --timeout 120 2>&1 |
    awk -F'[|%:]' -v cpus="$(nproc)" -v world="$world" '
      $2 ~ /_/ && NF > 8 && $7 + 0 > 0 { p50 = $7 }
      /^CPU:.*left/ { left = $2 }
      { lines = lines $0 "\n" }
      END {
        if (!p50 || left == "") { printf "%s", lines > "/dev/stderr"; exit 1 }
        each = cpus > world ? cpus / world : 1
        print p50 / 1000 * (1 - left / 100) * each
      }'
}

echo "| product | ranks | m | Mbit/s | compute ms | comm ms | c/c | unfused ms" \
  "| fused ms | overlap | gain | CPU ms | / bound |"
echo "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
for world in $worlds; do
  for shape in $shapes; do
    for m in ${rows//,/ }; do
      alone=$(measure "$world" 0 0 "$shape" "$m" 1)
      for ratio in $ratios; do
        read -r gbit burst bytes iterations < <(python3 -c '
import json, sys
row = json.loads(sys.argv[1])[0]
world, ratio = int(sys.argv[2]), float(sys.argv[3])
sent = row["wire_bytes"] * (world - 1) / world
seconds = row["compute_us"] * 1e-6 / ratio
gbit = sent * 8 / seconds / 1e9 * 1514 / 1448
burst = min(max(int(sent / 8), 16 << 10), 128 << 10)
if sys.argv[4]:
    gbit = float(sys.argv[4])
    burst = int(64e3 * gbit)
iterations = max(10, int(float(sys.argv[5]) * gbit * 1e9 / 8 / sent))
print(f"{gbit:.4f}", burst, row["wire_bytes"], iterations)
' "$alone" "$world" "$ratio" "$wanted" "$seconds")
        cpu=$(transfer_cpu "$world" "$gbit" "$burst" "$shape" "$bytes" \
          "$iterations")
        measure "$world" "$gbit" "$burst" "$shape" "$m" "$seconds" |
          python3 -c '
import json, sys
row = json.load(sys.stdin)[0]
if row["wrong"]:
    sys.exit("overlap: wrong elements")
shape, gbit, cpu = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
bound = max(row["comm_us"], row["compute_us"] + cpu * 1e3) / 1e3
world, m = row["world"], row["m"]
fused, unfused = row["p50_us"] / 1e3, row["unfused_us"] / 1e3
compute, comm = row["compute_us"] / 1e3, row["comm_us"] / 1e3
overlap = row["overlap"]
print(f"| {shape} | {world} | {m} | {gbit * 1e3:.0f} | {compute:.1f} "
      f"| {comm:.1f} | {compute / comm:.2f} | {unfused:.1f} | {fused:.1f} "
      f"| {overlap:.0%} | {unfused / fused:.2f} | {cpu:.1f} "
      f"| {fused / bound:.2f} |")
' "$shape" "$gbit" "$cpu"
      done
    done
  done
done
