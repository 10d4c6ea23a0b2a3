# Soft-RoCE: an RDMA device over an ordinary network interface.
#
#   rxe.sh veth ADDRESS            both ends of a connection in this guest, over one device, rxe0
#   rxe.sh eth0 ADDRESS [DEVICE]   the wire to the other guest
set -eu
interface=$1 address=$2 device=${3:-rxe0}

# rxe computes its checksums through the crypto API's crc32 and does not load it by itself.
modprobe -a crc32_generic rdma_rxe rdma_ucm
mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config

case $interface in
veth) ip link add veth type veth peer name veth-peer && ip link set veth-peer mtu 9000 up ;;
eth0) modprobe virtio_net ;;
esac
# 9000 bytes carry a whole 4096-byte path MTU.
ip link set "$interface" mtu 9000 up
# RoCE takes a lost packet hard: Soft-RoCE's queue pair may end in an error. Debian's default queue (fq_codel) drops
# what has waited for 5 ms, which on an emulated machine is a burst of READ responses.
[ "$interface" = veth ] || tc qdisc replace dev "$interface" root pfifo_fast
ip address add "$address/24" dev "$interface"
rdma link add "$device" type rxe netdev "$interface"
