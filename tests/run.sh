#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and runs every test: the release build,
# AddressSanitizer + UndefinedBehaviorSanitizer, ThreadSanitizer.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: tests/run.sh [--release | --asan | --tsan] [--soak [MINUTES]] [-R REGEX]

Without options: all three builds and all tests but the long ones.
  --release | --asan | --tsan   only this build (may be repeated)
  --soak [MINUTES]              the long tests of the release build, with full
                                fault counts, for about MINUTES [10]
  -R REGEX                      only tests whose name matches
EOF
}

root=$(cd "$(dirname "$0")/.." && pwd)
builds=()
soak=
filter=()
while (($# > 0)); do
  case "$1" in
    --release | --asan | --tsan) builds+=("${1#--}") ;;
    --soak)
      soak=10
      if [[ ${2:-} =~ ^[0-9]+$ ]]; then
        soak=$2
        shift
      fi
      ;;
    -R)
      filter=(-R "${2:?-R needs a regular expression}")
      shift
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
  shift
done
if ((${#builds[@]} == 0)); then
  if [[ -n $soak ]]; then builds=(release); else builds=(release asan tsan); fi
fi

log=$(mktemp)
summary=$(mktemp)
tokenizer=
cleanup() {
  rm -f "$log" "$summary"
  if [[ -n $tokenizer ]]; then rm -rf "$tokenizer"; fi
}
trap cleanup EXIT

# The R1 tokenizer is not ours to ship. Where its files lie beside the
# repository, the tests that compare with it run too.
fixture=$root/../shared/fixtures/r1_tokenizer
if [[ -d $fixture ]]; then
  tokenizer=$(mktemp -d)
  gunzip -c "$fixture/tokenizer.json.gz" >"$tokenizer/tokenizer.json"
  cp "$fixture/tokenizer_config.json" "$fixture/vectors.json" "$tokenizer/"
  export RINGFLEET_R1_TOKENIZER=$tokenizer
fi

export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS="suppressions=$root/tests/tsan.supp:history_size=4"

build_dir() { if [[ $1 == release ]]; then echo "$root/build"; else echo "$root/build/$1"; fi; }

# ThreadSanitizer needs the address space of older kernels.
run_in() {
  if [[ $1 == tsan ]] && setarch -R true 2>/dev/null; then
    setarch -R "${@:2}"
  else
    "${@:2}"
  fi
}

steps=$((1 + 2 * ${#builds[@]}))
at=1
step() {
  echo "[$at/$steps] $1 ($(date +%H:%M:%S))"
  at=$((at + 1))
}

step "packages"
"$root/cluster/install-packages.sh" --tests

failed=0
for build in "${builds[@]}"; do
  step "build: $build"
  # GCC 12 warns of what is not there once it instruments code.
  werror=OFF
  [[ ${CI:-} == true && $build == release ]] && werror=ON
  # ThreadSanitizer sees no order inside the packaged gRPC and protobuf, which
  # are not instrumented. It judges what is ours alone: kernels, collectives
  # over their own queues, and the model; the services run under the others.
  targets=()
  labels=(-LE soak)
  if [[ $build == tsan ]]; then
    targets=(--target ringfleet_kernels_test ringfleet_cluster_test
      ringfleet_worker_test)
    # Under it the longest tests take minutes and run nothing that others don't.
    labels=(-L unit -E 'GreedyContinuation|RandomModel')
  fi
  if ! { cmake --preset "$build" -S "$root" -DRINGFLEET_WERROR=$werror &&
    run_in "$build" cmake --build "$(build_dir "$build")" -j "$(nproc)" \
      "${targets[@]}"; } \
    >"$log" 2>&1; then
    grep -E -A8 'error|FAILED' "$log" | head -n 60 >&2 || tail -n 40 "$log" >&2
    echo "build $build failed" >&2
    exit 1
  fi

  step "tests: $build"
  if [[ -n $soak ]]; then
    labels=(-L soak)
    export RINGFLEET_SOAK_MINUTES=$soak
  fi
  if ! run_in "$build" ctest --test-dir "$(build_dir "$build")" \
    --output-on-failure -j "$(nproc)" --no-tests=error "${labels[@]}" \
    "${filter[@]}" 2>&1 | tee "$log" | grep -vE '^ *Start +[0-9]+:|\.+ +Passed'; then
    failed=1
  fi
  printf '%-8s %s\n' "$build" "$(grep -E 'tests passed' "$log" || echo 'no summary')" >>"$summary"
done

echo
cat "$summary"
exit "$failed"
