# Swap space by others, for comparison: the kernel's NVMe-oF target on its ramdisk (brd), and its own client.
#
#   nvmf-swap.sh serve ADDRESS BYTES TRANSPORT      nvmf-swap.sh attach ADDRESS TRANSPORT     prints the device
#   nvmf-swap.sh stop                               nvmf-swap.sh detach                       TRANSPORT: rdma, tcp
set -eu
name=nqn.2026-11.lab.rdmakit:swap
subsystem=/sys/kernel/config/nvmet/subsystems/$name
port=/sys/kernel/config/nvmet/ports/1

case $1 in
serve)
  modprobe brd rd_nr=1 rd_size="$(($3 / 1024))"
  modprobe "nvmet-$4"
  mkdir "$subsystem"
  echo 1 >"$subsystem/attr_allow_any_host"
  mkdir "$subsystem/namespaces/1"
  echo /dev/ram0 >"$subsystem/namespaces/1/device_path"
  echo 1 >"$subsystem/namespaces/1/enable"
  mkdir "$port"
  echo ipv4 >"$port/addr_adrfam"
  echo "$4" >"$port/addr_trtype"
  echo "$2" >"$port/addr_traddr"
  echo 4420 >"$port/addr_trsvcid"
  ln -s "$subsystem" "$port/subsystems/$name"
  ;;
stop) # Whatever is there of it, from the outside in; then the ramdisk, whose memory only goes with it.
  rm -f "$port/subsystems/$name"
  for folder in "$port" "$subsystem/namespaces/1" "$subsystem"; do
    [ ! -e "$folder" ] || rmdir "$folder"
  done
  modprobe --remove brd
  ;;
attach)
  modprobe "nvme-$3"
  echo "transport=$3,traddr=$2,trsvcid=4420,nqn=$name" >/dev/nvme-fabrics
  # The kernel looks for namespaces on its own time.
  for _ in $(seq 100); do
    [ ! -e /dev/nvme0n1 ] || break
    sleep 0.1
  done
  ls /dev/nvme0n1
  ;;
detach) echo 1 >/sys/class/nvme/nvme0/delete_controller ;;
esac
