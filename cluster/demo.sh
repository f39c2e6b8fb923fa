#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds ringfleet, starts a fleet of two workers and a coordinator on this
# machine, lets the bundled model continue a prompt, and stops the fleet.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: cluster/demo.sh [PROMPT]

Installs missing packages (root or sudo), builds into build/, starts two
workers and a coordinator on loopback, streams what the bundled model (trained
on Python sources) writes after PROMPT, and stops everything. Leaves build/.
EOF
}

case "${1:-}" in
  -h | --help)
    usage
    exit 0
    ;;
esac
prompt=${1:-$'def read_lines(path, encoding="utf-8"):\n    """'}
root=$(cd "$(dirname "$0")/.." && pwd)
tokens=120

step() { echo "[$1/5] $2"; }

# A port that nobody listens on now.
free_port() {
  local port
  for _ in {1..100}; do
    port=$((20000 + RANDOM % 20000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      echo "$port"
      return
    fi
  done
  return 1
}

step 1 "packages"
"$root/cluster/install-packages.sh"

step 2 "build (build/bin; the first time takes some minutes)"
log=$(mktemp)
cmake --preset release -S "$root" >"$log" 2>&1 &&
  cmake --build "$root/build" --target ringfleet ringfleet-coordinator \
    ringfleet-worker -j "$(nproc)" >>"$log" 2>&1 || {
  tail -n 30 "$log" >&2
  rm -f "$log"
  exit 1
}
rm -f "$log"

work=$(mktemp -d)
export XDG_STATE_HOME=$work/state
ringfleet=$root/build/bin/ringfleet
fleet=$work/demo.yaml
stop() {
  "$ringfleet" down --cluster "$fleet" >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM
cat >"$fleet" <<EOF
name: demo
model: $root/tests/models/tiny-v3
dtype: bf16
wire: bf16
coordinator: {port: $(free_port)}
workers:
  - {port: 0, threads: 1}
  - {port: 0, threads: 1}
EOF

step 3 "start two workers and a coordinator"
"$ringfleet" up --cluster "$fleet" 2>"$work/up.log" || {
  cat "$work/up.log" >&2
  exit 1
}

step 4 "generate"
printf '%s' "$prompt"
"$ringfleet" submit --cluster "$fleet" -p "$prompt" -n "$tokens" --temp 0.6 \
  --top-p 0.95 --seed 1

step 5 "stop the fleet"
"$ringfleet" down --cluster "$fleet" 2>/dev/null
