#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and runs every test: the release build,
# AddressSanitizer + UndefinedBehaviorSanitizer, ThreadSanitizer.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: tests/run.sh [--release | --asan | --tsan] [--soak [MINUTES]] [-R REGEX]
       tests/run.sh --clients

Without options: all three builds and all tests but the long ones.
  --release | --asan | --tsan   only this build (may be repeated)
  --soak [MINUTES]              the long tests of the release build, with full
                                fault counts, for about MINUTES [10] each; the
                                coordinator's unit tests with threads delayed at
                                random and the fuzzer of frames for a quarter of
                                that
  --clients                     the clients that people use, over HTTP: needs a
                                registry of Python packages, skips without
  -R REGEX                      only tests whose name matches
EOF
}

root=$(cd "$(dirname "$0")/.." && pwd)
builds=()
soak=
clients=
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
    --clients) clients=yes ;;
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
  if [[ -n $soak || -n $clients ]]; then builds=(release); else builds=(release asan tsan); fi
fi

log=$(mktemp)
summary=$(mktemp)
tokenizer=
artifacts=
building=  # The process of a build under way.
# Ends what the process has started, and that in turn.
end_children() {
  local child
  for child in $(pgrep -P "$1"); do
    end_children "$child"
    kill -TERM "$child" 2>/dev/null || true
  done
}
cleanup() {
  if [[ -n $building ]]; then
    kill -STOP "$building" 2>/dev/null || true  # It starts nothing more.
    end_children "$building"
    kill -KILL "$building" 2>/dev/null || true
    wait "$building" 2>/dev/null || true
  fi
  rm -f "$log" "$log".* "$summary"
  # Only what a crash left in there is worth keeping.
  if [[ -n $artifacts ]]; then rmdir "$artifacts" 2>/dev/null || true; fi
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

# What is used after its function returned takes a third of a run to find: left
# to runs of one build.
after_return=$((${#builds[@]} == 1))
ASAN_OPTIONS=detect_stack_use_after_return=$after_return
ASAN_OPTIONS+=:strict_string_checks=1:malloc_context_size=10
export ASAN_OPTIONS
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
if [[ -n $soak ]]; then steps=$((steps + 2)); fi
if [[ -n $clients ]]; then steps=3; fi
at=1
step() {
  echo "[$at/$steps] $1 ($(date +%H:%M:%S))"
  at=$((at + 1))
}

# What ThreadSanitizer does not run: the longest, which let no two threads meet
# that others don't (arithmetic, loads by one thread, whole models, eight
# ranks), and what has no threads at all.
tsan_except='*IsItsFormula*:MlaTest.*:MlaDecodeTest.IsRow*:WireFormat*'
tsan_except+=':ModelSpec*:*TileEveryWeight*:BadCheckpoint*:*BundledModelsLoad*'
tsan_except+=':ScorerTest*:*FoldersBitForBit*:*RowsDealtOut*:*GatheredWeights*'
tsan_except+=':LoadShare*:*RandomModel*:*GreedyContinuation*:*SeededGeneration*'
tsan_except+=':Sizes/*/5:Sizes/*/8:*GoldenTest*tiny_v3*:*GoldenTest*tiny_v2_lite*'
tsan_except+=':*GoldenExpertCounts*:*EveryWorldSize*:RowInvarianceTest*'
tsan_except+=':*RowInvarianceTest*:*ReferenceModel*:*ManyLong*:*HoldWherever*'
tsan_except+=':*WidensTheExchange*:*TheSecondLoadMaps*:*InvalidPlan*'
tsan_except+=':*Popularity*:*ConfigTest*:*Planner*:*Placement*:*StepCost*'
tsan_except+=':SyntheticModel*:*Safetensors*:ModelTensors*:*ExpertDispatch*'
tsan_except+=':*DivergesAsAPlain*:ShardLoaderTest*:PanelAmxTest*:WidenTest*'
tsan_except+=':SyntheticCheckpoint*:BalanceRouter*:*OwnRowsOnly*:PanelKernels*'
tsan_except+=':*GoesTogether/f32:*GoesTogether/bf16:*GoesTogether/int4'
tsan_except+=':*FindsEveryPosition*:HostServiceTest*:Families/GoldenTest*'
tsan_except+=':*NativeModelTest*:QuantizedShardTest*:*EncodingTest*:BadCodes*'

# Tests that passed in processes that several share.
count_sharded() {
  if [[ $shards == OFF || $1 == release ]]; then return; fi
  grep -hoE '^\[  PASSED  \] [0-9]+' \
    "$(build_dir "$1")/Testing/Temporary/LastTest.log" |
    awk '{ sum += $4 } END { printf " (processes, of %d tests)", sum }'
}

# Whether unit tests share processes: not where some are picked by name.
shards=OFF
if ((${#filter[@]} == 0)) && [[ -z $soak ]]; then shards=ON; fi

# Configures and builds; what is said goes to the log of this build.
build() {
  local -r build=$1
  # GCC 12 warns of what is not there once it instruments code.
  local werror=OFF sharded=$shards except= targets=()
  if [[ $build == release ]]; then
    sharded=OFF
    if [[ ${CI:-} == true ]]; then werror=ON; fi
  fi
  # ThreadSanitizer sees no order inside the packaged gRPC and protobuf, which
  # are not instrumented. It judges what is ours alone: kernels, collectives
  # over their own queues, and the model; the services run under the others.
  if [[ $build == tsan ]]; then
    targets=(--target ringfleet_kernels_test ringfleet_cluster_test
      ringfleet_worker_test)
    except=$tsan_except
  fi
  { cmake --preset "$build" -S "$root" -DRINGFLEET_WERROR=$werror \
    -DRINGFLEET_TEST_SHARDS="$sharded" -DRINGFLEET_TEST_EXCEPT="$except" &&
    run_in "$build" cmake --build "$(build_dir "$build")" -j "$(nproc)" \
      "${targets[@]}"; } >"$log.$build" 2>&1
}

# Waits for the build that is under way, or does it.
finish_build() {
  local -r build=$1
  if [[ -n $building ]]; then
    wait "$building" && building= && return
    building=
  else
    build "$build" && return
  fi
  grep -E -A8 'error|FAILED' "$log.$build" | head -n 60 >&2 ||
    tail -n 40 "$log.$build" >&2
  echo "build $build failed" >&2
  exit 1
}

step "packages"
packages=(--tests)
if [[ -n $clients ]]; then packages+=(--clients); fi
"$root/cluster/install-packages.sh" "${packages[@]}"

if [[ -n $clients ]]; then
  step "build: release"
  finish_build release
  step "clients"
  status=0
  "$root/tests/clients/run.sh" "$(build_dir release)" || status=$?
  if ((status == 77)); then status=0; fi
  exit "$status"
fi

failed=0
for i in "${!builds[@]}"; do
  build=${builds[i]}
  step "build: $build"
  finish_build "$build"

  # Tests wait more than they compute: the next build takes what they leave.
  next=${builds[i + 1]:-}
  if [[ -n $next ]]; then
    build "$next" &
    building=$!
    renice -n 19 -p "$building" >/dev/null 2>&1 || true
  fi
  step "tests: $build"
  labels=(-LE soak)
  if [[ $build == tsan ]]; then
    labels=(-L unit -E '^(ringfleet_(worker_service|coordinator|structure)_test|CommentOpenings)')
  fi
  if [[ -n $soak ]]; then
    labels=(-L soak)
    export RINGFLEET_SOAK_MINUTES=$soak
  fi
  if ! run_in "$build" ctest --test-dir "$(build_dir "$build")" \
    --output-on-failure -j "$(($(nproc) + 1))" --no-tests=error "${labels[@]}" \
    "${filter[@]}" 2>&1 | tee "$log" | grep -vE '^ *Start +[0-9]+:|\.+ +Passed'; then
    failed=1
  fi
  printf '%-8s %s%s\n' "$build" \
    "$(grep -E 'tests passed' "$log" || echo 'no summary')" \
    "$(count_sharded "$build")" >>"$summary"
done

# Whether clang++ can link a libFuzzer target.
has_fuzzer() {
  local -r probe=$1/probe
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' >"$probe.cc"
  clang++ -fsanitize=fuzzer "$probe.cc" -o "$probe" >/dev/null 2>&1
  local -r status=$?
  rm -f "$probe" "$probe.cc"
  return "$status"
}

# One line of summary on the fuzzer; not 0 when it found something.
fuzz() {
  local -r seconds=$1
  if ! command -v clang++ >/dev/null; then
    echo "skipped: clang++ is not installed"
    return 0
  fi
  artifacts=$(mktemp -d)
  if ! has_fuzzer "$artifacts"; then
    echo "skipped: clang++ has no libFuzzer (package libclang-rt-dev)"
    return 0
  fi
  if ! { cmake --preset fuzz -S "$root" &&
    cmake --build "$root/build/fuzz" -j "$(nproc)" --target frame_fuzz; } \
    >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "the build failed"
    return 1
  fi
  if ! "$root/build/fuzz/bin/frame_fuzz" -max_total_time="$seconds" -max_len=4096 \
    -artifact_prefix="$artifacts/" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "found: see $(echo "$artifacts"/*)"
    return 1
  fi
  echo "$(grep -E '^Done [0-9]+ runs' "$log" || echo 'no summary'), nothing found"
}

# One line of summary on rounds of the coordinator's unit tests whose threads
# sleep at random; not 0 when a test failed.
delay() {
  local -r end=$((SECONDS + $1)) folder=$(build_dir release)/tests
  local -r library=$folder/testing/libringfleet_thread_delays.so
  local rounds=0
  if [[ ! -f $library || ${#filter[@]} -gt 0 ]]; then
    echo "skipped: without the release build, or beside -R"
    return 0
  fi
  while ((rounds == 0 || SECONDS < end)); do
    if ! LD_PRELOAD=$library ctest --test-dir "$folder/coordinator" -L unit \
      --no-tests=error --output-on-failure -j "$((4 * $(nproc)))" >"$log" 2>&1; then
      grep -vE '^ *Start +[0-9]+:|\.+ +Passed' "$log" | tail -n 60 >&2
      echo "failed in round $((rounds + 1))"
      return 1
    fi
    rounds=$((rounds + 1))
  done
  echo "$rounds rounds, $(grep -E 'tests passed' "$log")"
}

if [[ -n $soak ]]; then
  quarter=$((soak * 15 > 0 ? soak * 15 : 1))
  line=$(mktemp)
  step "delayed threads"
  delay "$quarter" >"$line" || failed=1
  printf '%-8s %s\n' delays "$(cat "$line")" | tee -a "$summary"
  step "fuzzer: frame_fuzz"
  fuzz "$quarter" >"$line" || failed=1
  printf '%-8s %s\n' fuzz "$(cat "$line")" | tee -a "$summary"
  rm -f "$line"
fi

echo
cat "$summary"
exit "$failed"
