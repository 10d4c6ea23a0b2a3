# Kernel iWARP: an RDMA device over TCP, beside rxe0, on a wire of its own.
#
#   siw.sh SIW_MODULE
#
#   siw0, 10.78.0.1 ── siw ══ siw-peer ── 10.78.0.2, in the network namespace siw-peer
#
# A connection from 10.78.0.1 to itself is siw's own at both ends, over lo. What runs in the namespace has
# no RDMA device and goes through the wire, with its frames of 1500 bytes: user space, against the kernel.
set -eu

# siw names none of these as its own, but does not work without.
modprobe -a ib_uverbs iw_cm rdma_ucm libcrc32c crc32c_generic
insmod "$1"

ip netns add siw-peer
ip link add siw type veth peer name siw-peer netns siw-peer
ip address add 10.78.0.1/24 dev siw
ip link set siw up
ip -n siw-peer address add 10.78.0.2/24 dev siw-peer
ip -n siw-peer link set siw-peer up
ip -n siw-peer link set lo up
rdma link add siw0 type siw netdev siw
