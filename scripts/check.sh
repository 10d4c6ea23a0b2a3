#!/usr/bin/env bash
# npm run check: format and lint of TypeScript and C++, the native stress tests under
# AddressSanitizer + UndefinedBehaviorSanitizer and under ThreadSanitizer, and each fuzz target for a minute
# (or RDMAKIT_FUZZ_SECONDS).
# Usage: scripts/check.sh [style] [native] [fuzz]   (default: all)
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh build test

style() {
  echo "check: TypeScript (biome)"
  npx biome check --error-on-warnings .
  echo "check: types of the tests"
  npx tsc -p tsconfig.tests.json
  echo "check: every public symbol of verbs is documented (typedoc)"
  npx typedoc --options packages/verbs/typedoc.json --tsconfig packages/verbs/tsconfig.json \
    --entryPoints packages/verbs/src/index.ts --emit none --logLevel Warn
  echo "check: C++ (clang-format)"
  git ls-files '*.cc' '*.h' | xargs clang-format --dry-run --Werror
}

# native NAME SANITIZERS UNITS [CTEST OPTION…]: builds the native tests that it is to run, and runs them.
native() {
  local build="build/native-$1" log tests
  echo "check: native tests, $1"
  cmake -S test/native -B "$build" -DCMAKE_BUILD_TYPE=Release -DRDMAKIT_SANITIZE="$2" -DRDMAKIT_UNITS="$3" >/dev/null
  # One "  Test #7: NAME" a line.
  mapfile -t tests < <(ctest --test-dir "$build" --show-only "${@:4}" | sed -n 's/^ *Test *#[0-9]*: //p')
  log=$(mktemp)
  if ! cmake --build "$build" --parallel "$(nproc)" --target "${tests[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
  ctest --test-dir "$build" --output-on-failure "${@:4}"
}

for part in "${@:-style native fuzz}"; do
  for one in $part; do
    case $one in
      style) style ;;
      native)
        # The counting allocators stand where the sanitizers put their own, and memory is more with them. Each file
        # compiled by itself, so that none leans on what its neighbours in a unit include.
        native plain '' OFF --tests-regex 'allocation|shm_many'
        native asan-ubsan address,undefined ON
        native tsan thread ON
        ;;
      fuzz)
        echo "check: fuzz targets"
        bash scripts/fuzz.sh "${RDMAKIT_FUZZ_SECONDS:-60}"
        ;;
      *)
        echo "check: unknown part \"$one\"; known: style, native, fuzz" >&2
        exit 2
        ;;
    esac
  done
done
echo "check: all held"
