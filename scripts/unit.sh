#!/usr/bin/env bash
# npm run test:unit -- [PART…] [VITEST OPTION…]: unit tests, conformance of verbs on shm and iwarp, and end-to-end tests,
# on this machine. A PART is a package (verbs, ring-transport, swap-server, remote-volume, nbd-client), e2e, docs, bench,
# conformance, or a part of a file's name. With none all run, and their report is test-results/host.json. RDMAKIT_EFFORT=N repeats N times
# as often what may be repeated; RDMAKIT_TIER=soak adds the tests of a soak (*.soak.test.ts).
set -euo pipefail
cd "$(dirname "$0")/.."

arguments=()
all=true
for word; do
  case $word in
    verbs | ring-transport | swap-server | remote-volume | nbd-client) arguments+=("packages/$word/") && all=false ;;
    e2e) arguments+=(test/e2e/) && all=false ;;
    docs) arguments+=(test/docs/) && all=false ;;
    bench) arguments+=(bench/test/) && all=false ;;
    conformance) arguments+=(--project iwarp --project shm) && all=false ;;
    *) arguments+=("$word") && all=false ;;
  esac
done
if $all; then
  mkdir -p test-results
  rm -f test-results/host.json
  arguments=(--reporter=default --reporter=./scripts/reports/results-reporter.mjs --outputFile.json=test-results/host.json)
fi
exec node node_modules/vitest/vitest.mjs run "${arguments[@]}"
