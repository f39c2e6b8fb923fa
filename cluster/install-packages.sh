#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that ringfleet is built and tested with, where
# they are missing. Needs root or sudo only then.
set -euo pipefail

packages=(
  build-essential cmake ninja-build pkg-config
  libabsl-dev libgrpc++-dev libprotobuf-dev protobuf-compiler
  protobuf-compiler-grpc libyaml-cpp-dev nlohmann-json3-dev libcli11-dev
  libboost-dev libhwy-dev libisal-dev libopenblas-serial-dev libpcre2-dev
  libsqlite3-dev libssl-dev libxxhash-dev
)
test_packages=(libgtest-dev libgmock-dev openssh-server openssh-client iproute2
  nftables)

client_packages=(chromium chromium-driver curl fonts-dejavu-core haproxy jq nginx
  prometheus python3-venv)
perf_packages=(libbenchmark-dev)

for option in "$@"; do
  case "$option" in
    --tests) packages+=("${test_packages[@]}") ;;
    --clients) packages+=("${client_packages[@]}") ;;
    --perf) packages+=("${perf_packages[@]}") ;;
    *)
      echo "usage: $0 [--tests] [--clients] [--perf]" >&2
      exit 2
      ;;
  esac
done

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [[ $status == "install ok installed" ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  echo "packages: all ${#packages[@]} are installed"
  exit 0
fi

echo "packages: installing ${missing[*]}"
sudo=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || {
    echo "packages: not root and no sudo; install by hand: ${missing[*]}" >&2
    exit 1
  }
  sudo=(sudo)
fi
log=$(mktemp)
# Tests run daemons of their own: those of the packages start neither during
# the installation (man invoke-rc.d, policy-rc.d) nor at the next boot.
policy=/usr/sbin/policy-rc.d
own_policy=
cleanup() {
  rm -f "$log"
  if [[ -n $own_policy ]]; then "${sudo[@]}" rm -f "$policy"; fi
}
trap cleanup EXIT
if [[ ! -e $policy ]]; then
  own_policy=yes
  printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$policy" >/dev/null
  "${sudo[@]}" chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
if ! { "${sudo[@]}" apt-get update &&
  "${sudo[@]}" apt-get install -y --no-install-recommends "${missing[@]}"; } \
  >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "packages: installation failed" >&2
  exit 1
fi
if command -v systemctl >/dev/null; then
  for package in "${missing[@]}"; do
    case "$package" in
      haproxy | nginx | prometheus)
        "${sudo[@]}" systemctl disable "$package" >/dev/null 2>&1 || true
        ;;
    esac
  done
fi
