#!/usr/bin/env bash
# npm test: everything that must hold, on a fresh machine too. Ends with one line "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh build test lab

mkdir -p test-results
failures=0

echo "test: unit, conformance and end-to-end tests over software RDMA"
npx vitest run --reporter=default --reporter=./scripts/results-reporter.mjs --outputFile.json=test-results/host.json || failures=1

echo "test: the lab (guests with real kernel drivers)"
bash scripts/lab.sh || failures=1

node scripts/count-tests.mjs test-results || failures=1
exit "$failures"
