#!/usr/bin/env bash
# npm run check: format and lint of TypeScript and C++, and the native stress tests under
# AddressSanitizer + UndefinedBehaviorSanitizer and under ThreadSanitizer.
# Usage: scripts/check.sh [style] [native]   (default: both)
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh build test

style() {
  echo "check: TypeScript (biome)"
  npx biome check --error-on-warnings .
  echo "check: C++ (clang-format)"
  git ls-files '*.cc' '*.h' | xargs clang-format --dry-run --Werror
}

native() {
  local sanitizer=$1 build="build/native-${1//,/-}"
  echo "check: native stress tests with -fsanitize=$sanitizer"
  cmake -S test/native -B "$build" -DCMAKE_BUILD_TYPE=Release -DRDMAKIT_SANITIZE="$sanitizer" >/dev/null
  cmake --build "$build" --parallel "$(nproc)" | grep -E 'warning|error|FAILED' || true
  ctest --test-dir "$build" --output-on-failure
}

for part in "${@:-style native}"; do
  for one in $part; do
    case $one in
      style) style ;;
      native)
        native address,undefined
        native thread
        ;;
      *)
        echo "check: unknown part \"$one\"; known: style, native" >&2
        exit 2
        ;;
    esac
  done
done
echo "check: all held"
