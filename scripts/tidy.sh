#!/usr/bin/env bash
# npm run tidy: clang-tidy with the checks of .clang-tidy, over the C++ that differs from the branch main; on main itself,
# over what changed in the last day, or in the last commit.
# Usage: scripts/tidy.sh [--within SECONDS] [all | FILE…]   A changed header stands for the files that include it by its
# name. A file takes some 3 s of a processor: `all` takes ten minutes on two, and is a part of a soak. When SECONDS are over
# no other file is begun, and it says how many are left; what changed last comes first.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=86400
if [[ ${1:-} == --within ]]; then
  seconds=$2
  shift 2
fi

if ! command -v clang-tidy >/dev/null; then
  echo "tidy: clang-tidy is missing; as root: apt-get install --no-install-recommends clang-tidy (bash scripts/setup.sh test)" >&2
  exit 77
fi

# Each file by itself, as `native.sh files` compiles them.
build=build/native-tidy
cmake -S test/native -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=clang++ -DRDMAKIT_UNITS=OFF \
  -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_JS_INC="$PWD/node_modules/node-api-headers/include" >/dev/null
mapfile -t known < <(sed -n 's/^ *"file": "\(.*\)",\?$/\1/p' "$build/compile_commands.json" | sort -u |
  grep -F "$PWD/" | grep -v "^$PWD/build/")

# The commit before those that are looked at: where this branch left main; on main the last one before a day ago, or the one
# before the last. Empty: nothing is known, as in a clone of one commit.
base() {
  local head left
  head=$(git rev-parse HEAD)
  left=$(git merge-base main HEAD 2>/dev/null || true)
  if [[ -z $left || $left == "$head" ]]; then
    left=$(git rev-list -1 --before='24 hours ago' HEAD)
    left=${left:-$(git rev-parse --verify --quiet HEAD~1 || true)}
  fi
  echo "$left"
}

# changed: what is not committed yet, then what was, the last first; what is gone is not among it.
changed() {
  local from
  from=$(base)
  {
    git ls-files --others --exclude-standard -- '*.cc' '*.h'
    git diff --name-only HEAD -- '*.cc' '*.h'
    [[ -z $from ]] || git log --format= --name-only "$from..HEAD" -- '*.cc' '*.h'
  } | awk '!seen[$0]++' | while read -r file; do
    if [[ -e $file ]]; then echo "$file"; fi
  done
}

case ${1:-} in
  all) files=("${known[@]}") ;;
  *)
    if (($#)); then given=("$@"); else mapfile -t given < <(changed); fi
    files=()
    for one in "${given[@]}"; do
      if [[ $one == *.h ]]; then
        mapfile -t including < <(git grep -lE "#include \"(.*/)?${one##*/}\"" -- '*.cc' | sed "s|^|$PWD/|")
        files+=("${including[@]}")
      else
        files+=("$(realpath "$one")")
      fi
    done
    mapfile -t files < <(printf '%s\n' "${files[@]}" | awk '!seen[$0]++' | grep -Fxf <(printf '%s\n' "${known[@]}") || true)
    ;;
esac
if ((${#files[@]} == 0)); then
  echo "tidy: no C++ has changed"
  exit 0
fi

echo "tidy: ${#files[@]} files"
left=$(mktemp)
trap 'rm -f "$left"' EXIT
export build left until=$((EPOCHSECONDS + seconds))
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c '
  if ((EPOCHSECONDS < until)); then exec clang-tidy --quiet -p "$build" "$0"; fi
  echo "$0" >>"$left"
' 2> >(grep -v 'warnings\? generated\|Suppressed\|^Use -header-filter' >&2)
if [[ -s $left ]]; then echo "tidy: $(wc -l <"$left") files are left after $seconds s: npm run tidy"; fi
echo "tidy: nothing found"
