#!/usr/bin/env bash
# npm run lab: real RDMA, NBD and swap in emulated guests. See test/lab/README.md.
# Exits with 77 where no guest can run.
set -euo pipefail
cd "$(dirname "$0")/.."

[ -d node_modules ] || bash scripts/setup.sh build
node_modules/.bin/tsc -b test
exec node test/dist/lab/run.js "$@"
