# Swap space by others, for comparison: nbdkit's memory over TCP, and nbd-client.
#
#   nbdkit-swap.sh serve ADDRESS BYTES      nbdkit-swap.sh attach ADDRESS DEVICE
#   nbdkit-swap.sh stop                     nbdkit-swap.sh detach DEVICE
set -eu
pidfile=/run/nbdkit.pid
case $1 in
# nbdkit goes into the background once it accepts connections.
serve) nbdkit --pidfile "$pidfile" --ipaddr "$2" --port 10809 memory "$3" ;;
stop) kill "$(cat "$pidfile")" ;;
attach) nbd-client "$2" 10809 "$3" -b 4096 -swap ;;
detach) nbd-client -d "$2" ;;
esac
