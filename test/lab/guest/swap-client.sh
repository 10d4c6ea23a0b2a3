# Runs the process that swap goes through: its own memory is never swapped.
#
#   swap-client.sh COMMAND…
set -eu
group=/sys/fs/cgroup/swap-client
mkdir -p "$group"
echo 0 >"$group/memory.swap.max"
echo "$$" >"$group/cgroup.procs"
exec "$@"
