#!/usr/bin/env bash
# Brings a fresh machine to where the project builds and runs: system packages, npm packages, build.
# Usage: scripts/setup.sh [build] [test] [lab] [bench] [packages]   (groups of system packages; default: build)
# Quick when there is nothing to do. Says what it does.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/ccache.sh

# npm ci only warns of a wrong one, and the first to fail is some tool, in words of its own. Of a range of `engines`, ^A.B.C
# is A.B.C or later with the same A, and >=A.B.C any later.
engines=$(sed -n '/"engines"/,/}/s/.*"node": "\(.*\)".*/\1/p' package.json)
fits() {
  local range lowest
  for range in ${engines//||/ }; do
    lowest=${range##*[=^]}
    [[ $range == ">="* || ${1%%.*} == "${lowest%%.*}" ]] && printf '%s\n' "$lowest" "$1" | sort --check=quiet -V && return
  done
  return 1
}
version=$(node --version || true)
if ! fits "${version#v}"; then
  echo "setup: this needs Node.js $engines; node is ${version:-not there} (Debian 12 has 18; nodejs.org has newer ones)" >&2
  exit 1
fi

# What needs the network gets three tries: a mirror that stops in the middle of an answer is no fault of this machine.
three_times() {
  for pause in 2 10; do
    "$@" && return
    echo "setup: failed, once more in $pause s: $*" >&2
    sleep "$pause"
  done
  "$@"
}

install_system_packages() {
  apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

declare -A packages=(
  [build]="g++ make ninja-build cmake libibverbs-dev librdmacm-dev libgnutls28-dev liburing-dev"
  [test]="nbdkit libnbd-bin python3-libnbd fio qemu-utils clang-format clang clang-tidy libclang-rt-14-dev tshark openssl
          e2fsprogs systemd liblz4-1 fish"
  [lab]="qemu-system-x86 busybox-static cpio kmod iproute2 rdma-core ibverbs-providers ibverbs-utils
         rdmacm-utils perftest qperf nbdkit nbd-client libnbd-bin fio util-linux mount libelf1 e2fsprogs"
  [bench]="ucx-utils libfabric-bin util-linux"
  [packages]="debootstrap g++-aarch64-linux-gnu qemu-user-static"
)

missing=()
for group in "${@:-build}"; do
  for package in ${packages[$group]:?unknown group "$group"}; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
done
if ((${#missing[@]})); then
  if ((EUID != 0)); then
    echo "setup: these system packages are missing; as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  echo "setup: installing system packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  three_times install_system_packages
fi

if [[ ! -e node_modules/.package-lock.json || package-lock.json -nt node_modules/.package-lock.json ]]; then
  echo "setup: npm ci"
  # What the try before has fetched comes from npm's cache.
  three_times npm ci --no-audit --no-fund --loglevel=error --prefer-offline
  touch node_modules/.package-lock.json
fi

echo "setup: build"
npm run --silent build
