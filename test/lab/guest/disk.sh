# The guest's own disk, /dev/vda.
set -eu
modprobe virtio_blk
test -b /dev/vda
