# A swap storm on the whole machine, without a control group: four processes want more memory than it has,
# and verify what they wrote.
#
#   storm.sh SECONDS GROUP
#
# Prints about once a second, memory in KiB, and ends as stress-ng ends: with 2 when a page was wrong:
#
#   sample UPTIME MEMORY_TOTAL MEMORY_AVAILABLE PAGES_IN PAGES_OUT
#   client SWAPPED GROUP_SWAPPED ANONYMOUS GROUP_ANONYMOUS    of the one process in the control group GROUP, and of that
set -eu
seconds=$1
group=$2
read -r client <"$group/cgroup.procs"

sample() {
  while read -r name value _; do
    case $name in
    MemTotal:) total=$value ;;
    MemAvailable:) available=$value ;;
    esac
  done </proc/meminfo
  while read -r name value; do
    case $name in
    pswpin) in=$value ;;
    pswpout) out=$value ;;
    esac
  done </proc/vmstat
  read -r uptime _ </proc/uptime
  echo "sample $uptime $total $available $in $out"
  while read -r name value _; do
    case $name in
    RssAnon:) anonymous=$value ;;
    VmSwap:) swapped=$value ;;
    esac
  done <"/proc/$client/status"
  read -r group_swapped <"$group/memory.swap.current"
  while read -r name value; do
    case $name in
    anon) group_anonymous=$value ;;
    esac
  done <"$group/memory.stat"
  echo "client $swapped $((group_swapped / 1024)) $anonymous $((group_anonymous / 1024))"
}

sample
stress-ng --vm 4 --vm-bytes 120% --verify --timeout "${seconds}s" --metrics-brief &
storm=$!
# Of busybox and dash both: kill -0 asks whether the process is there.
while kill -0 "$storm" 2>/dev/null; do
  sleep 1
  sample
done
wait "$storm"
