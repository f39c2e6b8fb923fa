#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/clients/run.sh BUILD_DIR
#
# Drives `ringfleet serve` with the clients that people use. Their pinned
# packages go into a virtual environment in BUILD_DIR. Ends with 77, and the
# reason, where there is no registry to install them from.
set -euo pipefail

build=${1:?usage: tests/clients/run.sh BUILD_DIR}
here=$(cd "$(dirname "$0")" && pwd)
model=$here/../models/tiny-v3
name=tiny-v3
environment=$build/clients

if [[ ! -x $environment/bin/python ]]; then python3 -m venv "$environment"; fi
if ! "$environment/bin/pip" install -q --disable-pip-version-check \
  -r "$here/requirements.txt" >"$environment/pip.log" 2>&1; then
  echo "skipped: the packages of tests/clients cannot be installed: $(tail -n 1 "$environment/pip.log")"
  exit 77
fi
# Wheels of which single files are read.
wheels=$environment/wheels
if ! "$environment/bin/pip" download -q --disable-pip-version-check --no-deps \
  -d "$wheels" -r "$here/wheels.txt" >"$environment/pip.log" 2>&1; then
  echo "skipped: the wheels of tests/clients cannot be loaded: $(tail -n 1 "$environment/pip.log")"
  exit 77
fi
SGLANG_WHEEL=$(echo "$wheels"/sglang-*.whl)
export SGLANG_WHEEL
export PATH=$environment/bin:$PATH
# A client must not ask hosts beyond this one.
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TRANSFORMERS_OFFLINE=1 DO_NOT_TRACK=1

folder=$(mktemp -d)
serve=
cleanup() {
  if [[ -n $serve ]]; then
    kill -TERM "$serve" 2>/dev/null || true
    wait "$serve" 2>/dev/null || true
  fi
  rm -rf "$folder"
}
trap cleanup EXIT

"$build/bin/ringfleet" serve --model "$model" --dtype f32 --port 0 --drain 2s \
  --state-dir "$folder/state" \
  >"$folder/address" 2>"$folder/errors" &
serve=$!
for ((i = 0; i < 600; ++i)); do
  [[ -s $folder/address ]] && break
  kill -0 "$serve" 2>/dev/null || break
  sleep 0.1
done
url=$(sed -n 's/^listening on //p' "$folder/address")
if [[ -z $url ]]; then
  cat "$folder/errors" >&2
  exit 1
fi

failed=0
for client in "$here"/*_client.*; do
  run=("$client")
  if [[ $client == *.py ]]; then run=(python "$client"); fi
  began=$SECONDS
  status=0
  RINGFLEET=$build/bin/ringfleet RINGFLEET_MODEL=$model timeout 300 "${run[@]}" "$url" "$name" \
    >"$folder/log" 2>&1 || status=$?
  if ((status == 0)); then
    echo "passed  $(basename "$client") ($((SECONDS - began)) s)"
  elif ((status == 77)); then
    echo "skipped $(basename "$client"): $(tail -n 1 "$folder/log")"
  else
    failed=1
    tail -n 40 "$folder/log"
    echo "FAILED  $(basename "$client")"
  fi
  sed -n 's/^skipped /        skipped /p' "$folder/log"
done
exit "$failed"
