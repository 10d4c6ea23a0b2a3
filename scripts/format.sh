#!/usr/bin/env bash
# npm run format: rewrites TypeScript and C++ in the project's format.
set -euo pipefail
cd "$(dirname "$0")/.."
npx biome check --write .
git ls-files '*.cc' '*.h' | xargs clang-format -i
