#!/usr/bin/env bash
# npm run bench -- [suite…] [option…]: micro, verbs, ring, … Without a suite: all (--help names them).
# Figures are ratios of one run; the machine must do nothing else meanwhile. npm run bench -- --help, and bench/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh build test bench >&2
exec node bench/dist/main.js "$@"
