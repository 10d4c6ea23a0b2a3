#!/usr/bin/env bash
# npm run demo: one machine swaps onto another's memory over RDMA, in two guests, and every byte is
# checked. Sets up what is missing first. "npm run demo -- --user-space" shows the form without guests.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh build lab
exec node test/dist/demo/main.js "$@"
