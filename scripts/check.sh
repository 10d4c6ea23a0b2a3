#!/usr/bin/env bash
# npm run check: format, lint, types and documentation; the native tests plain, under ASan and UBSan, and under TSan;
# each fuzz target for ten seconds (or RDMAKIT_FUZZ_SECONDS).
# Usage: scripts/check.sh [style] [native] [fuzz]   (default: all)
set -euo pipefail
cd "$(dirname "$0")/.."

style() {
  echo "check: TypeScript (biome)"
  npx biome check --error-on-warnings .
  echo "check: types of the tests"
  npx tsc -p tsconfig.tests.json
  npx tsc -p bench --noEmit
  echo "check: each test ends in a state that it asserts"
  node scripts/checks/expectations.mjs
  echo "check: layers, circles of imports, sizes of folders and files"
  node --disable-warning=ExperimentalWarning scripts/checks/structure.mjs
  echo "check: mutations stand where they say"
  node scripts/mutate.mjs --check
  echo "check: the tests are there that hold what the page service promises, and SECURITY.md"
  node scripts/checks/promises.mjs
  echo "check: the tests are there that are left out under ASan"
  node scripts/checks/left-out.mjs
  echo "check: what the packages export is documented, and of verbs every symbol (typedoc)"
  npx typedoc --emit none --logLevel Warn
  echo "check: what the packages export is as docs/api-report says"
  node scripts/checks/api-report.mjs
  echo "check: C++ (clang-format)"
  git ls-files '*.cc' '*.h' | xargs clang-format --dry-run --Werror
  echo "check: verbs and ring ask V8 what a value is: of another realm (vm, jest) it is an instance of nothing here"
  if git grep -nE 'instanceof (Error|Promise|Buffer|DataView|[A-Za-z0-9]*Array(Buffer)?|Map|Set)\b' -- packages/{verbs,ring-transport}/src
  then exit 1; fi
  echo "check: packages leave a process as they found it: no flags of V8 after its start, no insides of Node, no globals"
  if git grep -nE 'setFlagsFromString|\._handle\b|process\.binding|util\.Long *=|globalThis\.[A-Za-z_]+ *=[^=]' -- packages/*/src
  then exit 1; fi
  echo "check: what the software providers have in common is written once"
  node scripts/checks/shared-runs.mjs --limit 14
  echo "check: no file names a package registry"
  # npm writes the addresses of its tarballs into the lock file unless .npmrc tells it not to.
  ! git grep -nE '"resolved": *"https?:|registry\.(npmjs|yarnpkg)\.' -- ':!scripts/check.sh'
}

(($#)) || set -- style native fuzz
bash scripts/setup.sh build test
for part; do
  case $part in
    style) style ;;
    native)
      # Plain: what sanitizers cannot show. The counting allocators stand where they put their own, and memory is more
      # with them.
      bash scripts/native.sh plain allocation shm_many
      bash scripts/native.sh asan tsan
      ;;
    fuzz) bash scripts/fuzz.sh "${RDMAKIT_FUZZ_SECONDS:-10}" ;;
    *)
      echo "check: unknown part \"$part\"; known: style, native, fuzz" >&2
      exit 2
      ;;
  esac
done
echo "check: all held"
