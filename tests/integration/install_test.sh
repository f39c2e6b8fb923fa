#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the build tree, moves the installation, and starts and stops a fleet
# from there. Usage: install_test.sh BUILD_FOLDER MODEL_FOLDER
set -uo pipefail
build=$1 model=$2

tmp=$(mktemp -d "${TMPDIR:-/tmp}/ringfleet_install.XXXXXX") || exit 1
export XDG_STATE_HOME=$tmp/state
unset RINGFLEET_BIN_DIR RINGFLEET_CLI RINGFLEET_LAUNCH_DIR
ringfleet=$tmp/moved/bin/ringfleet
fleet=$tmp/fleet.yaml

clean_up() {
  [[ ! -e $fleet ]] || "$ringfleet" down --cluster "$fleet" >/dev/null 2>&1
  rm -rf "$tmp"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
  echo "FAILED: $*"
  exit 1
}

cmake --install "$build" --prefix "$tmp/first" >"$tmp/install.log" 2>&1 || {
  cat "$tmp/install.log"
  fail "cmake --install"
}
mv "$tmp/first" "$tmp/moved"
for file in bin/ringfleet bin/ringfleet-coordinator bin/ringfleet-worker \
  share/ringfleet/launch/ssh/fleet.sh share/ringfleet/launch/ssh/host.sh \
  share/doc/ringfleet/README.md share/doc/ringfleet/LICENSE \
  share/doc/ringfleet/launch/README.md share/doc/ringfleet/launch/sample.yaml; do
  [[ -f $tmp/moved/$file ]] || fail "$file is not installed"
done

cat >"$fleet" <<END
model: $model
coordinator: {port: $((20000 + RANDOM % 10000))}
workers: [{port: 0, threads: 1}]
END
"$ringfleet" up --cluster "$fleet" --timeout 100 || fail "up: exit code $?"

# The daemons are those of the installation.
for label in coordinator rank-0; do
  read -r pid _ <"$XDG_STATE_HOME/ringfleet/fleet/$label.pid"
  program=$(readlink "/proc/$pid/exe")
  [[ $program == "$tmp/moved/bin/"* ]] || fail "$label runs $program"
done

# The script finds the installed binaries by itself, too.
status=$("$tmp/moved/share/ringfleet/launch/ssh/fleet.sh" status \
  --cluster "$fleet") || fail "fleet.sh status: exit code $?"
[[ $status == *'[0 127.0.0.1] running pid '* ]] || fail "status: $status"

"$ringfleet" down --cluster "$fleet" || fail "down: exit code $?"
[[ ! -e $XDG_STATE_HOME/ringfleet/fleet/rank-0.pid ]] || fail "rank 0 is left"
echo "installed, moved, started and stopped"
