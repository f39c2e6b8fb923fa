#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs Debian's Open MPI, which the collectives are compared with, where it
# is missing. Needs root or sudo only then. Nothing of ringfleet uses it.
set -euo pipefail

packages=(openmpi-bin libopenmpi-dev)
missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [[ $status == "install ok installed" ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  echo "openmpi: installed"
  exit 0
fi

echo "openmpi: installing ${missing[*]}"
sudo=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || {
    echo "openmpi: not root and no sudo; install by hand: ${missing[*]}" >&2
    exit 1
  }
  sudo=(sudo)
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { "${sudo[@]}" apt-get update &&
  "${sudo[@]}" apt-get install -y --no-install-recommends "${missing[@]}"; } \
  >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "openmpi: installation failed" >&2
  exit 1
fi
