# A guest under systemd as a host of examples/two-hosts, before the first command of its README: the checkout at
# /opt/rdmakit, an address, and a network that goes when the system stops it.
#
#   two-hosts.sh CHECKOUT FOLDER_OF_NODE ADDRESS
set -eu
mkdir -p /opt/rdmakit
mount --bind "$1" /opt/rdmakit
PATH=/usr/local/bin:/usr/bin:/bin command -v node >/dev/null || cp "$2/node" /usr/local/bin/
ip address add "$3/24" dev eth0

cat >/etc/systemd/system/lab-network.service <<END
[Unit]
Before=network.target network-online.target
Wants=network.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
ExecStop=/bin/sh -c 'echo the network goes; ip link set eth0 down'
[Install]
WantedBy=network-online.target
END
systemctl daemon-reload
systemctl enable --now --quiet lab-network
