#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds ringfleet, starts a fleet of two workers and a coordinator on this
# machine, lets the bundled model continue a prompt, answers a chat over HTTP,
# and stops the fleet.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: cluster/demo.sh [PROMPT]

Installs missing packages (root or sudo), builds into build/, starts two
workers and a coordinator on loopback, streams what the bundled model (trained
on Python sources) writes after PROMPT, answers one chat over HTTP, and stops
everything. Leaves build/.
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

step() { echo "[$1/6] $2"; }

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

work=$(mktemp -d)
export XDG_STATE_HOME=$work/state
ringfleet=$root/build/bin/ringfleet
fleet=$work/demo.yaml
builder=''
stop() {
  [[ -z $builder ]] || kill -- "-$builder" 2>/dev/null || true
  [[ ! -e $fleet ]] || "$ringfleet" down --cluster "$fleet" >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

# Shows ninja's progress: on a terminal its own line, elsewhere a line of it every
# ten seconds.
build() {
  local command=(cmake --build "$root/build" --target ringfleet
    ringfleet-coordinator ringfleet-worker -j "$(nproc)") last='' line tick
  if [[ -t 1 ]]; then
    "${command[@]}"
    return
  fi
  set -m  # A process group of its own, which an interrupt ends as a whole.
  "${command[@]}" >"$work/build.log" 2>&1 &
  builder=$!
  set +m
  for ((tick = 1; ; ++tick)); do
    kill -0 "$builder" 2>/dev/null || break
    sleep 0.2
    ((tick % 50 == 0)) || continue
    line=$(grep -o '^\[[0-9]*/[0-9]*\]' "$work/build.log" | tail -n 1 || true)
    [[ $line == "$last" ]] || echo "      $line"
    last=$line
  done
  local code=0
  wait "$builder" || code=$?
  builder=''
  ((code == 0)) || tail -n 30 "$work/build.log" >&2
  return "$code"
}

step 2 "build (build/bin; the first time takes some minutes)"
cmake --preset release -S "$root" >"$work/configure.log" 2>&1 || {
  tail -n 30 "$work/configure.log" >&2
  exit 1
}
build
http_port=$(free_port)
cat >"$fleet" <<EOF
name: demo
model: $root/tests/models/tiny-v3
dtype: bf16
wire: bf16
coordinator: {port: $(free_port)}
http: {port: $http_port}
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

step 5 "answer a chat over HTTP, as OpenAI's API does (port $http_port)"
body='{"messages": [{"role": "user", "content": "import os"}], "max_tokens": 24, "seed": 1}'
exec 3<>"/dev/tcp/127.0.0.1/$http_port"
printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
  "${#body}" "$body" >&3
answer=$(cat <&3)
exec 3<&-
echo "${answer##*$'\r\n\r\n'}"
[[ $answer == 'HTTP/1.1 200 '* ]]

step 6 "stop the fleet"
"$ringfleet" down --cluster "$fleet" 2>/dev/null
