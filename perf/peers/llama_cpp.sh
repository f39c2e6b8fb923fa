#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares `ringfleet bench` with llama.cpp on a model of the same sizes, turn
# by turn in one run, and prints one table. llama.cpp is built from the source
# package of its Python binding, which the package client of this machine
# fetches; everything goes to build/peers.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: perf/peers/llama_cpp.sh [--type q8_0|q4_0] [--model M] [--dtype D]
                               [--threads N] [--rounds N] [--quick]

  --type     llama.cpp's weights [q8_0]
  --model    ringfleet's model, of the same sizes [synth:r1-slice]
  --dtype    ringfleet's weights in memory [int8]
  --threads  of both [all cores]
  --rounds   each program measures everything once a round; medians are
             compared [3]
  --quick    prompts and generation of one sequence only

Needs cmake, a C++ compiler, python3 with venv, 8 GB of disk and of memory.
USAGE
}

root=$(cd "$(dirname "$0")/../.." && pwd)
version=0.3.36
type=q8_0
model=synth:r1-slice
dtype=int8
threads=$(nproc)
rounds=3
quick=0
while (($# > 0)); do
  case "$1" in
    --type | --model | --dtype | --threads | --rounds)
      declare "${1#--}=${2:?$1 needs a value}"
      shift
      ;;
    --quick) quick=1 ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      exit 2
      ;;
  esac
  shift
done

peers=$root/build/peers
source=$peers/llama_cpp_python-$version/vendor/llama.cpp
build=$peers/llama.cpp-$version
gguf=$peers/r1-slice-$type.gguf
mkdir -p "$peers"

python=$peers/venv/bin/python3
if [[ ! -x $python ]]; then
  python3 -m venv "$peers/venv"
  "$python" -m pip install -q gguf==0.19.0 >&2
fi
if [[ ! -d $source ]]; then
  "$python" -m pip download -q --no-deps --no-binary llama-cpp-python \
    -d "$peers" "llama-cpp-python==$version" >&2
  tar -xzf "$peers/llama_cpp_python-$version.tar.gz" -C "$peers"
fi
if [[ ! -x $build/bin/llama-batched-bench ]]; then
  cmake -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=Release \
    -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF >&2
  cmake --build "$build" --parallel \
    --target llama-bench llama-batched-bench >&2
fi
if [[ ! -f $gguf ]]; then
  "$python" "$root/perf/peers/gguf_model.py" --type "$type" --out "$gguf" >&2
fi

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# One round of one program. Depths are filled before the clock starts in both;
# several sequences are llama-batched-bench's, which fills with a prompt.
run_llama() {
  local bench=("$build/bin/llama-bench" -m "$gguf" -t "$threads" -r 1 -o jsonl)
  "${bench[@]}" -p 512 -n 128 -d 0
  "${bench[@]}" -p 0 -n 64 -d 2048
  if ((quick)); then return; fi
  local parallel
  for parallel in 8 32; do
    "$build/bin/llama-batched-bench" -m "$gguf" -t "$threads" \
      -c $((parallel * 128)) -npp 16 -ntg 32 -npl "$parallel" \
      --output-format jsonl
  done
}
run_ringfleet() {
  local bench=("$root/build/bin/ringfleet" bench --model "$model" --dtype
    "$dtype" -t "$threads" -r 1 -o jsonl)
  "${bench[@]}" -p 512 -n 128 -d 0
  "${bench[@]}" -p 0 -n 64 -d 2048
  if ((quick)); then return; fi
  "${bench[@]}" -p 0 -n 32 -d 16 -np 8,32
}
for ((round = 1; round <= rounds; ++round)); do
  echo "round $round of $rounds" >&2
  run_llama >>"$results/llama" 2>>"$results/log" || {
    tail -5 "$results/log" >&2
    exit 1
  }
  run_ringfleet >>"$results/ringfleet"
done

"$python" - "$results/llama" "$results/ringfleet" "$type" "$dtype" <<'REPORT'
import json, statistics, sys

def tests(path):
    """{(sequences, test): [tokens/s of each round]}"""
    found = {}
    for line in open(path):
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        if "pl" in row:  # Of llama-batched-bench.
            key = (row["pl"], f"tg{row['tg']} @ d{row['pp']}")
            speed = row["speed_tg"]
        else:
            name = (f"pp{row['n_prompt']}" if row["n_prompt"]
                    else f"tg{row['n_gen']}")
            if row["n_depth"]:
                name += f" @ d{row['n_depth']}"
            key = (row.get("n_parallel", 1), name)
            speed = row["avg_ts"]
        found.setdefault(key, []).append(speed)
    return {key: statistics.median(values) for key, values in found.items()}

llama, ours = tests(sys.argv[1]), tests(sys.argv[2])
print(f"| n_parallel | test | llama.cpp {sys.argv[3]}, t/s | "
      f"ringfleet {sys.argv[4]}, t/s | ratio |")
print("|---:|---|---:|---:|---:|")
for key in llama:
    if key in ours:
        print(f"| {key[0]} | {key[1]} | {llama[key]:.2f} | {ours[key]:.2f} | "
              f"{ours[key] / llama[key]:.2f} |")
REPORT
