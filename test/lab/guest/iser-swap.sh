# Swap space as the thesis had it, for comparison: a ramdisk of the kernel's iSCSI target (LIO), over iSER.
#
#   iser-swap.sh serve ADDRESS BYTES      iser-swap.sh attach ADDRESS     prints the device
#   iser-swap.sh stop                     iser-swap.sh detach
set -eu
name=iqn.2026-11.lab.rdmakit:swap
ramdisk=/sys/kernel/config/target/core/rd_mcp_0
target=/sys/kernel/config/target/iscsi/$name
group=$target/tpgt_1

disk() { # Our one session's one disk; nothing while it is not there.
  for disk in /sys/class/iscsi_session/session*/device/target*/*/block/sd*; do
    [ ! -e "$disk" ] || echo "/dev/${disk##*/}"
  done
}

case $1 in
serve)
  modprobe -a target_core_mod iscsi_target_mod ib_isert
  mkdir -p "$ramdisk/swap"
  echo "rd_pages=$(($3 / 4096))" >"$ramdisk/swap/control"
  echo 1 >"$ramdisk/swap/enable"
  # As nbd and NVMe say of themselves: the kernel swaps otherwise to what it takes for a turning disk.
  echo 1 >"$ramdisk/swap/attrib/is_nonrot"
  mkdir -p "$group/lun/lun_0"
  ln -s "$ramdisk/swap" "$group/lun/lun_0/swap"
  # Whoever connects may write: there is nobody else on this wire.
  for attribute in authentication=0 generate_node_acls=1 demo_mode_write_protect=0; do
    echo "${attribute#*=}" >"$group/attrib/${attribute%=*}"
  done
  mkdir "$group/np/$2:3260"
  echo 1 >"$group/np/$2:3260/iser"
  echo 1 >"$group/enable"
  ;;
stop) # Whatever is there of it, from the outside in.
  [ ! -e "$group" ] || echo 0 >"$group/enable"
  rm -f "$group/lun/lun_0/swap"
  for folder in "$group"/np/* "$group/lun/lun_0" "$group" "$target" "$ramdisk/swap" "$ramdisk"; do
    [ ! -e "$folder" ] || rmdir "$folder"
  done
  ;;
attach)
  modprobe -a sd_mod ib_iser
  mkdir -p /run/lock/iscsi
  echo InitiatorName=iqn.2026-11.lab.rdmakit:client >/run/initiatorname.iscsi
  iscsid --initiatorname=/run/initiatorname.iscsi
  # "iser" is the interface record that iscsiadm has for this transport.
  iscsiadm --mode node --target "$name" --portal "$2:3260" --interface iser --op new >&2
  iscsiadm --mode node --target "$name" --portal "$2:3260" --interface iser --login >&2
  # The kernel looks for disks on its own time.
  for _ in $(seq 100); do
    [ -z "$(disk)" ] || break
    sleep 0.1
  done
  disk | grep .
  ;;
detach)
  iscsiadm --mode node --target "$name" --logout >&2
  iscsiadm --mode node --target "$name" --op delete >&2
  iscsiadm --killiscsid=0
  ;;
esac
