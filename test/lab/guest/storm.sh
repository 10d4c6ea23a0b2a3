# A swap storm on the whole machine, without a control group: four processes want more memory than it has,
# and verify what they wrote.
#
#   storm.sh SECONDS
#
# Prints a line "sample UPTIME MEMORY_TOTAL MEMORY_AVAILABLE PAGES_IN PAGES_OUT" about once a second, memory
# in KiB, and ends as stress-ng ends: with 2 when a page was wrong.
set -eu
seconds=$1

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
