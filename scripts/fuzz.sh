#!/usr/bin/env bash
# Fuzzes what reads bytes from a peer (test/fuzz, libFuzzer with ASan and UBSan; in Node.js for TypeScript).
# Usage: scripts/fuzz.sh [SECONDS] [TARGET…]   each target for that long (60), all targets by default
#        scripts/fuzz.sh merge [TARGET…]       puts what was found new into test/fuzz/corpus, minimised
# A target is a test/fuzz/TARGET_fuzz.cc or .ts with seeds in test/fuzz/corpus/TARGET/; to add one, add those two.
# What is found new stays in build/fuzz/corpus; an input that fails stays in build/fuzz/findings.
# A failure is reproduced with build/fuzz/TARGET_fuzz INPUT.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=60
merge=false
if [[ ${1:-} == merge ]]; then
  merge=true
  shift
elif [[ ${1:-} =~ ^[0-9]+$ ]]; then
  seconds=$1
  shift
fi
targets=("$@")
if ((${#targets[@]} == 0)); then
  for source in test/fuzz/*_fuzz.{cc,ts}; do
    source=${source##*/}
    targets+=("${source%_fuzz.*}")
  done
fi

build=build/fuzz
export ASAN_OPTIONS=quarantine_size_mb=32:${ASAN_OPTIONS:-}
mkdir -p "$build/findings"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { npm run --silent build &&
  cmake -S test/fuzz -B "$build" -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=Release &&
  cmake --build "$build" --parallel "$(nproc)"; } >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
# A target in TypeScript is a program as the others are: libFuzzer starts it again by its name when it merges.
for source in test/fuzz/*_fuzz.ts; do
  program=$build/$(basename "$source" .ts)
  cat >"$program" <<'EOF'
#!/bin/sh
exec node --enable-source-maps --max-old-space-size=512 "$(dirname "$0")/control_host.js" "$0" "$@"
EOF
  chmod +x "$program"
done

for target in "${targets[@]}"; do
  seeds=test/fuzz/corpus/$target
  found=$build/corpus/$target
  if [[ ! -f test/fuzz/${target}_fuzz.cc && ! -f test/fuzz/${target}_fuzz.ts ]]; then
    echo "fuzz: no such target: $target (no test/fuzz/${target}_fuzz.cc or .ts)" >&2
    exit 2
  fi
  mkdir -p "$seeds" "$found"
  limits=(-timeout=25 -rss_limit_mb=2048 -max_len=2048 "-artifact_prefix=$build/findings/$target-")
  if $merge; then
    echo "fuzz: $target, merging"
    fresh=$(mktemp -d "$build/merge.XXXXXX")
    # By edges alone, not by how often each is taken: a few seeds that reach everything.
    "$build/${target}_fuzz" "${limits[@]}" -merge=1 -use_counters=0 "$fresh" "$seeds" "$found" >"$log" 2>&1 || {
      cat "$log" >&2
      exit 1
    }
    rm -rf "$seeds"
    mv "$fresh" "$seeds"
    chmod 755 "$seeds"
    echo "fuzz: $target: $(find "$seeds" -type f | wc -l) seeds"
    continue
  fi
  echo "fuzz: $target, $seconds s, from $(find "$seeds" "$found" -type f | wc -l) inputs"
  if ! "$build/${target}_fuzz" "${limits[@]}" "-max_total_time=$seconds" -print_final_stats=1 "$found" "$seeds" \
    >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    echo "fuzz: $target found something: see $build/findings" >&2
    exit 1
  fi
  grep -E '^#[0-9]+\s+DONE|^stat::(number_of_executed_units|average_exec_per_sec):' "$log"
done
echo "fuzz: nothing found"
