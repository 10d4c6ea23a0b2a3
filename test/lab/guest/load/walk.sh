# Runs array-walk alone in a control group, and alone on the swap that is on.
#
#   walk.sh ARRAY_WALK BYTES MAX HIGH     MAX, HIGH: bytes of memory, or max. Above HIGH the kernel slows it down
#                                         as much as swap is slow, above MAX it kills it when swap is too slow
set -eu
program=$1 bytes=$2 max=$3 high=$4

if [ "$(wc -l </proc/swaps)" -gt 2 ]; then
  echo "walk.sh: more than one swap device is on:" >&2
  cat /proc/swaps >&2
  exit 2
fi

group=/sys/fs/cgroup/walk
mkdir "$group"
echo "$max" >"$group/memory.max"
echo "$high" >"$group/memory.high"
(
  # A subshell's own process number: $$ stays the script's.
  sh -c 'echo "$PPID"' >"$group/cgroup.procs"
  exec "$program" --bytes "$bytes" --json
) && status=0 || status=$?
rmdir "$group"
exit "$status"
