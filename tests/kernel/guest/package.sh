#!/bin/bash
# package.sh - install the Debian package on a machine with systemd, upgrade it under a load, remove it, and purge it.
# The packages are /package.deb and, with a higher version, /newer.deb.
. /checks.sh
uri=nvme+tcp://127.0.0.1:4420/nqn.2014-08.org.example:disks
on_check_failed() { journalctl --no-pager -n 30 -u isolane | sed 's/^/    /'; }

is() { [ "$(systemctl is-active "$1")" = "$2" ]; }
installs() { dpkg -i /package.deb; }
is_neither_started_nor_enabled() { is isolane inactive && ! systemctl is-enabled isolane; }
starts() { systemctl start isolane && is isolane active; }
is_confined() { systemd-analyze --no-pager security --threshold=20 isolane | tail -n 2; [ "${PIPESTATUS[0]}" = 0 ]; }
reloads() {
	sed -i 's|^volume = .*|volume = "/var/lib/isolane/disk,size=64M"|' /etc/isolane/isolane.toml
	systemctl reload isolane && isolane info "$uri"
}
rejects_wrong_file() {
	cp /etc/isolane/isolane.toml /root/good
	echo 'wrong = 1' >> /etc/isolane/isolane.toml
	! systemctl reload isolane && is isolane active || return 1
	cp /root/good /etc/isolane/isolane.toml
}
pid() { systemctl show --property MainPID --value isolane; }
load=(isolane --log-level info bench "$uri?nsid=1" --rw randrw --bs 4k --depth 4 --size 4m --verify --reconnect 0s)
upgrades() { # under a load that would end with a lost connection
	local before bench; before=$(pid)
	"${load[@]}" --time 10m > /root/load.log 2>&1 & bench=$!
	until grep -q ': connected$' /root/load.log || ! kill -0 $bench; do sleep 0.1; done
	dpkg -i /newer.deb || return 1
	[ "$(pid)" = "$before" ] || { echo "the process is $(pid), was $before"; return 1; }
	[ "$(readlink "/proc/$before/exe")" = /usr/bin/isolane ] || { readlink "/proc/$before/exe"; return 1; }
	sleep 2
	kill $bench && wait $bench
	grep -q ' 0 wrong' /root/load.log && ! grep -i reconnect /root/load.log && return
	cat /root/load.log; return 1
}
restarts() { kill -9 "$(pid)"; sleep 1; until is isolane active; do sleep 0.2; done; isolane info "$uri"; }
keeps_ports_open() {
	systemctl stop isolane && systemctl start isolane.socket && is isolane inactive || return 1
	isolane info "$uri" && is isolane active
}
removes() { dpkg -r isolane && is isolane inactive && is isolane.socket inactive && [ -e /etc/isolane/isolane.toml ] && [ ! -e /usr/bin/isolane ]; }
purges() { dpkg -P isolane && [ ! -e /etc/isolane ] && [ -e /var/lib/private/isolane/disk ]; }

check "install the package" installs
check "the target is neither started nor enabled" is_neither_started_nor_enabled
check "the target starts" starts
check "systemd finds it confined" is_confined
check "reload serves another volume" reloads
check "reload with a wrong file changes nothing" rejects_wrong_file
check "a load before the upgrade" "${load[@]}" --time 2s
check "an upgrade keeps the process and its connections" upgrades
check "systemd restarts a killed target" restarts
check "systemd opens the ports" keeps_ports_open
check "remove the package" removes
check "purge the package, and keep the data" purges
