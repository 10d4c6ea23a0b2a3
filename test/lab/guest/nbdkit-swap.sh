# Swap space by others, for comparison: nbdkit's memory over TCP, and nbd-client. nbd.sh comes first.
#
#   nbdkit-swap.sh serve ADDRESS BYTES      nbdkit-swap.sh attach ADDRESS     prints the device
#   nbdkit-swap.sh stop                     nbdkit-swap.sh detach
set -eu
pidfile=/run/nbdkit.pid device=/dev/nbd0
case $1 in
# nbdkit goes into the background once it accepts connections.
serve) nbdkit --pidfile "$pidfile" --ipaddr "$2" --port 10809 memory "$3" ;;
stop) [ ! -e "$pidfile" ] || kill "$(cat "$pidfile")" ;;
attach)
  nbd-client "$2" 10809 "$device" -b 4096 -swap >&2
  echo "$device"
  ;;
detach) nbd-client -d "$device" ;;
esac
