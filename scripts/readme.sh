#!/usr/bin/env bash
# Follows README.md in a fresh clone of what is committed here, each line as it stands: demo, npm test, the programs and the
# examples. Part of npm run soak. As root, since npm test is. Status: 0 every line held.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/setup.sh build
exec node test/dist/docs/follow.js
