# Read by setup.sh: systemd becomes process 1, and the agent its service. Of the host's services none runs, of the
# distribution's what basic.target wants: journald, udevd and their like, but nothing that clears the host's /tmp.
mount -t tmpfs units /etc/systemd/system
for unit in systemd-tmpfiles-setup.service systemd-tmpfiles-clean.timer; do
  ln -s /dev/null "/etc/systemd/system/$unit"
done
# eth0 stays eth0 (systemd.net-naming-scheme(7)).
mount -t tmpfs links /etc/systemd/network
ln -s /dev/null /etc/systemd/network/99-default.link
head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' >/etc/machine-id

cat >/etc/systemd/system/lab.target <<END
[Unit]
Requires=basic.target lab-agent.service
After=basic.target
AllowIsolate=yes
END

# It stays until the last process of a shutdown, to tell of it.
cat >/etc/systemd/system/lab-agent.service <<END
[Unit]
DefaultDependencies=no
After=basic.target
IgnoreOnIsolate=yes
[Service]
ExecStart=/bin/sh -c 'exec "$lab_agent" /dev/vport*p1'
OOMScoreAdjust=-1000
LimitMEMLOCK=infinity
TasksMax=infinity
END

# 90 s are much for a host, and little for an emulated one.
mkdir -p /etc/systemd/system.conf.d
printf '[Manager]\nDefaultTimeoutStartSec=600\n' >/etc/systemd/system.conf.d/lab.conf

exec /lib/systemd/systemd --unit=lab.target --show-status=no
