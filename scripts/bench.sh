#!/usr/bin/env bash
# npm run bench -- [suite…]: ring, nbd, lab. Without a suite: all. Figures are ratios of one run; the
# machine must do nothing else meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh build test
exec node bench/dist/main.js "$@"
