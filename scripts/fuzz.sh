#!/usr/bin/env bash
# Fuzzes what reads bytes from a peer (test/fuzz, libFuzzer with ASan and UBSan; in Node.js for TypeScript).
# Usage: scripts/fuzz.sh [SECONDS] [TARGET…]   each target for that long (60), all targets by default
#        scripts/fuzz.sh merge [TARGET…]       puts what was found new into test/fuzz/corpus, minimised
# A target is a TARGET_fuzz.cc or .ts in test/fuzz with seeds in test/fuzz/corpus/TARGET/; to add one, add those two.
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
  for source in test/fuzz/*/*_fuzz.cc test/fuzz/*_fuzz.ts; do
    source=${source##*/}
    targets+=("${source%_fuzz.*}")
  done
fi

build=build/fuzz
export ASAN_OPTIONS=quarantine_size_mb=32:${ASAN_OPTIONS:-}
mkdir -p "$build/findings" test-results
log=$(mktemp)
logs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$log" "$logs"' EXIT
if ! { npm run --silent build && bash scripts/native.sh program asan fuzz_targets; } >"$log" 2>&1; then
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

limits=(-timeout=25 -rss_limit_mb=2048 -max_len=2048)

# By edges alone, not by how often each is taken: a few seeds that reach everything.
merge_one() {
  local target=$1 seeds=test/fuzz/corpus/$1 found=$build/corpus/$1 fresh
  echo "fuzz: $target, merging"
  fresh=$(mktemp -d "$build/merge.XXXXXX")
  "$build/${target}_fuzz" "${limits[@]}" "-artifact_prefix=$build/findings/$target-" -merge=1 -use_counters=0 \
    "$fresh" "$seeds" "$found" >"$log" 2>&1 || {
    cat "$log" >&2
    exit 1
  }
  rm -rf "$seeds"
  mv "$fresh" "$seeds"
  chmod 755 "$seeds"
  echo "fuzz: $target: $(find "$seeds" -type f | wc -l) seeds"
}

# 1 when it found something; all that it says comes in one piece, for targets run side by side.
fuzz_one() {
  local target=$1 seeds=test/fuzz/corpus/$1 found=$build/corpus/$1 inputs said
  inputs=$(find "$seeds" "$found" -type f | wc -l)
  said=$(mktemp -p "$logs")
  # Ends with this shell, however that ends.
  if ! setpriv --pdeathsig TERM "$build/${target}_fuzz" "${limits[@]}" "-artifact_prefix=$build/findings/$target-" \
    "-max_total_time=$seconds" -print_final_stats=1 "$found" "$seeds" >"$said" 2>&1; then
    { tail -n 60 "$said"; echo "fuzz: $target found something: see $build/findings"; } >&2
    return 1
  fi
  echo "fuzz: $target, $seconds s, from $inputs inputs
$(grep -E '^#[0-9]+\s+DONE|^stat::(number_of_executed_units|average_exec_per_sec):' "$said")"
}

for target in "${targets[@]}"; do
  if ! compgen -G "test/fuzz/*/${target}_fuzz.cc" >/dev/null && [[ ! -f test/fuzz/${target}_fuzz.ts ]]; then
    echo "fuzz: no such target: $target (no test/fuzz/*/${target}_fuzz.cc, no test/fuzz/${target}_fuzz.ts)" >&2
    exit 2
  fi
  mkdir -p "test/fuzz/corpus/$target" "$build/corpus/$target"
done
if $merge; then
  for target in "${targets[@]}"; do merge_one "$target"; done
  exit 0
fi

# A target keeps one processor busy.
echo "fuzz: ${#targets[@]} targets, $seconds s each, $(nproc) at a time"
failures=0
running=0
for target in "${targets[@]}"; do
  if ((running == $(nproc))); then
    wait -n || failures=$((failures + 1))
    running=$((running - 1))
  fi
  fuzz_one "$target" &
  running=$((running + 1))
done
for ((; running > 0; running--)); do wait -n || failures=$((failures + 1)); done
((failures == 0)) || exit 1
echo "${#targets[@]}" >test-results/fuzz.count
echo "fuzz: nothing found"
