# Runs page-churn in a control group with less memory than it wants.
#
#   churn.sh PAGE_CHURN BYTES LIMIT
set -eu
group=/sys/fs/cgroup/churn
mkdir -p "$group"
echo "$3" >"$group/memory.max"
echo "$$" >"$group/cgroup.procs"
exec "$1" --bytes "$2"
