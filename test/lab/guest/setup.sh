# Second program of a guest, on its real root: what every test takes for granted, then the agent.
# Drivers are loaded only by whoever asks for them (rxe.sh, nbd.sh).
set -eu

mount -t sysfs sys /sys
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=755 run /run
: >/run/rdmakit-lab # Tests that may only run in a guest look for it.
mount -t cgroup2 cgroup /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control

mkdir -p /lib/modules
mount --bind "$lab_kernel/lib/modules" /lib/modules

echo "$lab_name" >/proc/sys/kernel/hostname
ip link set lo up

# The default is an eighth of the memory, and siw holds even root to it.
ulimit -l unlimited

cd "$lab_top"
if [ "$lab_init" = systemd ]; then . test/lab/guest/systemd.sh; fi
exec "$lab_agent" /dev/vport*p1
