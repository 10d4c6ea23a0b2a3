# Counts the system calls of some threads, in the kernel: it neither stops them nor needs memory meanwhile,
# as a tracer would that itself may wait for a page from swap.
#
#   count-syscalls.sh start TID…
#   count-syscalls.sh stop          prints a line "NAME COUNT" for each
set -eu

tracing=/sys/kernel/tracing
[ -d "$tracing/events" ] || mount -t tracefs tracefs "$tracing"
event=$tracing/events/raw_syscalls/sys_enter
histogram=hist:keys=id.syscall

case $1 in
start)
  shift
  filter=
  for thread; do filter="$filter${filter:+ || }common_pid == $thread"; done
  echo "$histogram if $filter" >"$event/trigger"
  ;;
stop)
  # { id: sys_epoll_wait                [232] } hitcount:      12345
  sed -n 's/^{ id: sys_\([a-z0-9_]*\) .*hitcount: *\([0-9]*\).*$/\1 \2/p' "$event/hist"
  # What takes a trigger away is the trigger as it is shown, behind a "!".
  removal=$(sed -n 's/^\(hist:.*\) \[active\]$/!\1/p' "$event/trigger")
  echo "$removal" >"$event/trigger"
  ;;
esac
