#!/usr/bin/env bash
# npm test: what a newcomer runs, on a fresh machine too; docs/testing.md. Ends with one line "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."
exec node scripts/tiers/main.mjs test "$@"
