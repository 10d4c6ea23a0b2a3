# The kernel's network block device: /dev/nbd0 and its like.
#
#   nbd.sh [HOW MANY]
set -eu
modprobe nbd nbds_max="${1:-4}" max_part=0
