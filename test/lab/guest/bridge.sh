# The wires to several guests as one network, br0; rxe.sh makes its RDMA device.
#
#   bridge.sh WIRE…
set -eu
modprobe -a virtio_net bridge
ip link add br0 type bridge
for wire; do ip link set "$wire" mtu 9000 master br0 up; done
