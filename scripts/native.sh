#!/usr/bin/env bash
# npm run test:native -- [CONFIGURATION…] [NAME…]: builds and runs the native tests (test/native/README.md) in the
# configurations that are named: plain (the default), asan (with UBSan), tsan. A NAME chooses the tests whose name
# holds it (iwarp, engine_thin), and only their programs are built. RDMAKIT_EFFORT=N repeats N times as often what
# may be repeated.
#   list                        prints the names of the tests
#   files                       compiles each file of product and tests by itself, so that none leans on what its
#                               neighbours include; runs nothing
#   program CONFIGURATION NAME  builds one program, for the lab (ibverbs_smoke, ublk_smoke); runs nothing
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/ccache.sh

declare -A options=(
  [plain]="-DRDMAKIT_BUILT=ON"
  [asan]="-DCMAKE_CXX_COMPILER=clang++ -DRDMAKIT_SANITIZE=address,undefined,fuzzer-no-link"
  [tsan]="-DRDMAKIT_SANITIZE=thread"
  [files]="-DRDMAKIT_UNITS=OFF -DCMAKE_JS_INC=$PWD/node_modules/node-api-headers/include"
)

# configure CONFIGURATION
configure() {
  local build=build/native-$1 given
  read -ra given <<<"${options[$1]:?no such configuration: $1}"
  # A build folder keeps the generator that it was made with.
  if [[ ! -e $build/CMakeCache.txt ]] && command -v ninja >/dev/null; then given+=(-G Ninja); fi
  cmake -S test/native -B "$build" -DCMAKE_BUILD_TYPE=Release "${given[@]}" >/dev/null
}

# compile CONFIGURATION TARGET…: silent unless it fails.
compile() {
  local log status=0
  log=$(mktemp)
  cmake --build "build/native-$1" --parallel "$(nproc)" --target "${@:2}" >"$log" 2>&1 || status=$?
  ((status == 0)) || cat "$log" >&2
  rm -f "$log"
  return "$status"
}

# run_tests CONFIGURATION NAME…
run_tests() {
  local build=build/native-$1 pattern tests
  pattern=$(IFS='|' && echo "${*:2}")
  # One "  Test #7: NAME" a line.
  mapfile -t tests < <(ctest --test-dir "$build" --show-only --tests-regex "${pattern:-.}" |
    sed -n 's/^ *Test *#[0-9]*: //p')
  if ((${#tests[@]} == 0)); then
    echo "native: no test is called $pattern; known: npm run test:native -- list" >&2
    return 2
  fi
  compile "$1" "${tests[@]/#/build_}"
  mkdir -p test-results
  # Most of them wait for something a good part of the time.
  ctest --test-dir "$build" --output-on-failure --parallel $(($(nproc) + 1)) --tests-regex "${pattern:-.}" \
    --output-junit "$PWD/test-results/native-$1.xml" --no-tests=error
}

case ${1:-} in
  list)
    (cd test/native && echo ./*/*_stress.cc ./*/*/*_stress.cc) | tr ' ' '\n' | sed -E 's#^\./([^/]+)/(.*/)?#\1_#; s#_stress\.cc$##' | sort
    exit
    ;;
  program)
    configure "$2"
    compile "$2" "$3"
    exit
    ;;
esac

configurations=()
names=()
for word; do
  case $word in
    plain | asan | tsan | files) configurations+=("$word") ;;
    *) names+=("$word") ;;
  esac
done
((${#configurations[@]})) || configurations=(plain)
for configuration in "${configurations[@]}"; do
  echo "native: $configuration"
  configure "$configuration"
  if [[ $configuration == files ]]; then
    compile files all verbs ring_transport nbd_client
  else
    run_tests "$configuration" "${names[@]}"
  fi
done
