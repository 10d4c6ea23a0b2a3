#!/usr/bin/env bash
# npm run tidy: clang-tidy with the checks of .clang-tidy, over the C++ that differs from the branch main.
# Usage: scripts/tidy.sh [all | FILE…]   A changed header stands for the files that include it by its name. `all` takes ten
# minutes on two processors, and is a part of a soak.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v clang-tidy >/dev/null; then
  echo "tidy: clang-tidy is missing; as root: apt-get install --no-install-recommends clang-tidy (bash scripts/setup.sh tidy)" >&2
  exit 77
fi

# Each file by itself, as `native.sh files` compiles them.
build=build/native-tidy
cmake -S test/native -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=clang++ -DRDMAKIT_UNITS=OFF \
  -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_JS_INC="$PWD/node_modules/node-api-headers/include" >/dev/null
mapfile -t known < <(sed -n 's/^ *"file": "\(.*\)",\?$/\1/p' "$build/compile_commands.json" | sort -u |
  grep -F "$PWD/" | grep -v "^$PWD/build/")

# changed: what differs from where this branch left main, and what is not committed yet.
changed() {
  git diff --name-only --diff-filter=d "$(git merge-base main HEAD 2>/dev/null || echo HEAD)" -- '*.cc' '*.h'
  git ls-files --others --exclude-standard -- '*.cc' '*.h'
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
    mapfile -t files < <(printf '%s\n' "${files[@]}" | sort -u | grep -Fxf <(printf '%s\n' "${known[@]}") || true)
    ;;
esac
if ((${#files[@]} == 0)); then
  echo "tidy: no C++ has changed"
  exit 0
fi

echo "tidy: ${#files[@]} files"
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p "$build" 2> >(grep -v 'warnings\? generated\|Suppressed\|^Use -header-filter' >&2)
echo "tidy: nothing found"
