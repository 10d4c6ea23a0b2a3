# The kernel's driver of block devices in user space: /dev/ublkbN, where somebody makes one.
#
#   ublk.sh UBLK_MODULE
set -eu
insmod "$1"
