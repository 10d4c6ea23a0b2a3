#!/usr/bin/env bash
# npm run soak -- [--minutes N] [--seed S] [--only PART] [--fresh]: everything that takes long; docs/testing.md.
set -euo pipefail
cd "$(dirname "$0")/.."
exec node scripts/tiers/soak.mjs "$@"
