#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares `ringfleet bench` with llama.cpp on a model of the same sizes, turn
# by turn in one run, and prints one table. llama.cpp is built from the source
# package of its Python binding, which the package client of this machine
# fetches; everything goes to build/peers.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: perf/peers/llama_cpp.sh [--type q8_0|q4_0] [--dtype D] [--threads N]
                               [--isa native|avx2] [--rounds N] [--quick]
                               [--deep] [--keep FILE]

  --type     llama.cpp's weights [q8_0]
  --dtype    ringfleet's weights in memory [int8 beside q8_0, int4 beside q4_0]
  --threads  of both [all cores]
  --isa      avx2: neither uses AVX-512 [native]
  --rounds   each program measures everything once a round; the table has
             medians, and the least and the largest ratio of a round [3]
  --quick    one sequence at depth 0 only
  --deep     also behind 8192 tokens, which llama.cpp reads for minutes
  --keep     appends what each program printed to FILE, as JSON lines

Also compares two servers of one thread each (tensor parallel over gRPC, layers
one after the other over llama.cpp's RPC), unless --quick.
Needs cmake, ninja, a C++ compiler, python3 with venv, and 10 GB of disk and of
memory.
USAGE
}

root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/perf/options.sh"
version=0.3.36
type=q8_0
dtype=
threads=$(nproc)
isa=native
rounds=3
quick=0
deep=
depths=2048
keep=
take_options "type dtype threads isa rounds keep" "quick deep" "$@"
[[ -z $deep ]] || depths=2048,8192
case "$type" in
  q8_0) dtype=${dtype:-int8} ;;
  q4_0) dtype=${dtype:-int4} ;;
  *)
    echo "llama_cpp.sh: --type $type, want q8_0 or q4_0" >&2
    exit 2
    ;;
esac
case "$isa" in
  native) flags=(-DGGML_NATIVE=ON) ;;
  avx2)
    flags=(-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON
      -DGGML_F16C=ON -DGGML_BMI2=ON)
    export RINGFLEET_ISA=avx2
    ;;
  *)
    echo "llama_cpp.sh: --isa $isa, want native or avx2" >&2
    exit 2
    ;;
esac

peers=$root/build/peers
source=$peers/llama_cpp_python-$version/vendor/llama.cpp
build=$peers/llama.cpp-$version-$isa
gguf=$peers/r1-slice-$type.gguf
ringfleet=$root/build/bin/ringfleet
mkdir -p "$peers"

if [[ ! -x $ringfleet ]]; then
  echo "llama_cpp.sh: no $ringfleet, want a release build" >&2
  exit 1
fi
python=$peers/venv/bin/python3
if [[ ! -x $peers/venv/bin/gguf-dump ]]; then
  echo "fetch: gguf" >&2
  python3 -m venv "$peers/venv"
  "$python" -m pip install -q gguf==0.19.0 >&2
fi
if [[ ! -d $source ]]; then
  echo "fetch: llama_cpp_python $version" >&2
  "$python" -m pip download -q --no-deps --no-binary llama-cpp-python \
    -d "$peers" "llama-cpp-python==$version" >&2
  tar -xzf "$peers/llama_cpp_python-$version.tar.gz" -C "$peers"
fi
targets=(llama-bench llama-batched-bench ggml-rpc-server)
if [[ ! -x $build/bin/${targets[2]} ]]; then
  echo "build: $build" >&2
  cmake -G Ninja -S "$source" -B "$build" -DCMAKE_BUILD_TYPE=Release \
    "${flags[@]}" -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DGGML_RPC=ON \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_SERVER=OFF >"$peers/build.log"
  cmake --build "$build" --target "${targets[@]}" >>"$peers/build.log"
fi
if [[ ! -f $gguf ]]; then
  echo "write: $gguf" >&2
  "$python" "$root/perf/peers/gguf_model.py" --type "$type" --out "$gguf" >&2
fi

results=$(mktemp -d)
servers=()
cleanup() {
  if ((${#servers[@]} > 0)); then kill "${servers[@]}" 2>/dev/null || true; fi
  rm -rf "$results"
}
trap cleanup EXIT

# One round of one program. Depths are filled before the clock starts in both;
# several sequences are llama-batched-bench's, which fills with a prompt.
run_llama() {
  local bench=("$build/bin/llama-bench" -m "$gguf" -r 1 -o jsonl)
  "${bench[@]}" -t "$threads" -p 128,512 -n 128
  if ((quick)); then return; fi
  "${bench[@]}" -t "$threads" -p 0 -n 64 -d "$depths"
  local parallel
  for parallel in 8 32; do
    "$build/bin/llama-batched-bench" -m "$gguf" -t "$threads" -tb "$threads" \
      -c $((parallel * 128)) -npp 16 -ntg 48 -npl "$parallel" \
      --output-format jsonl
  done
  local port
  for port in 50951 50952; do
    "$build/bin/ggml-rpc-server" -H 127.0.0.1 -p "$port" -t 1 >&2 &
    servers+=($!)
  done
  # It reads the model while the servers come up; -ngl: all layers to them.
  "${bench[@]}" -t 1 -p 0 -n 128 -ngl 99 -rpc 127.0.0.1:50951,127.0.0.1:50952
  kill "${servers[@]}"
  wait "${servers[@]}" 2>/dev/null || true
  servers=()
}
run_ringfleet() {
  local bench=("$ringfleet" bench --model synth:r1-slice --dtype "$dtype"
    -r 1 -o jsonl)
  "${bench[@]}" -t "$threads" -p 128,512 -n 128
  if ((quick)); then return; fi
  "${bench[@]}" -t "$threads" -p 0 -n 64 -d "$depths"
  "${bench[@]}" -t "$threads" -p 0 -n 48 -d 16 -np 8,32
  "${bench[@]}" --local 2 -t 1 -p 0 -n 128
}
for ((round = 1; round <= rounds; ++round)); do
  for program in llama ringfleet; do
    echo "round $round of $rounds: $program" >&2
    "run_$program" >>"$results/$program" 2>"$results/log" || {
      tail -5 "$results/log" >&2
      exit 1
    }
  done
done
if [[ -n $keep ]]; then cat "$results"/{llama,ringfleet} >>"$keep"; fi

"$python" "$root/perf/peers/report.py" --peer "llama.cpp $type" \
  --ours "ringfleet $dtype" "$results/llama" "$results/ringfleet"
