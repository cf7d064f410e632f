# Sourced: a Ceph cluster on loopback, of Debian's packages ceph-mon, ceph-mgr, ceph-osd, and ceph-common.
#
# One monitor, one manager, and two OSDs whose objects are in memory, with cephx. An OSD that ends with SIGTERM stores
# its objects and has them again after a restart; one that is killed loses them.

declare -A daemon_pid=()

# DIR: creates a cluster and waits until its OSDs are up. Later calls of `ceph` and `rbd` use it.
start_cluster() {
	local osd uuid fsid port
	cluster=$1 fsid=$(< /proc/sys/kernel/random/uuid) port=$(free_port)
	mkdir -p "$cluster/run" "$cluster/log"
	export CEPH_CONF=$cluster/ceph.conf
	write_conf "$fsid" "$port" > "$CEPH_CONF"
	make_key mon. mon 'allow *' && make_key client.admin mon 'allow *' mgr 'allow *' osd 'allow *' || return 1
	ceph-authtool "$cluster/mon..keyring" --import-keyring "$cluster/client.admin.keyring" || return 1
	monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$port/0]" "$cluster/monmap" || return 1
	ceph-mon --mkfs --id a --monmap "$cluster/monmap" --keyring "$cluster/mon..keyring" || return 1
	start_daemon mon a
	wait_for 120 monitor_answers_or_ended && ! has_no_monitor || { # another program may have taken its port
		echo "the monitor does not answer; its output ends:"
		tail -n 20 "$cluster/log/mon.a.out"
		return 1
	}
	ceph auth get-or-create mgr.x mon 'allow profile mgr' osd 'allow *' > "$cluster/mgr.x.keyring"
	start_daemon mgr x
	for osd in 0 1; do
		uuid=$(< /proc/sys/kernel/random/uuid)
		ceph osd new "$uuid" > /dev/null && mkdir "$cluster/osd.$osd" || return 1
		ceph auth get-or-create "osd.$osd" mon 'allow profile osd' mgr 'allow profile osd' osd 'allow *' \
			> "$cluster/osd.$osd.keyring"
		ceph-osd --mkfs --id $osd --osd-uuid "$uuid" || return 1
		start_daemon osd $osd
	done
	wait_for 60 osds_are_up || { echo "the OSDs are not up"; return 1; }
}

write_conf() { # FSID PORT
	cat <<-CONF
		[global]
		fsid = $1
		mon host = [v2:127.0.0.1:$2/0]
		public network = 127.0.0.0/8
		auth cluster required = cephx
		auth service required = cephx
		auth client required = cephx
		keyring = $cluster/\$name.keyring
		run dir = $cluster/run
		admin socket =
		log file = $cluster/log/\$name.log
		mon data = $cluster/mon
		mgr data = $cluster/mgr
		osd data = $cluster/osd.\$id
		osd objectstore = memstore
		osd fast shutdown = false
		memstore device bytes = 1G
		osd pool default size = 1
		osd pool default min size = 1
		osd pool default pg num = 8
		osd pool default pg autoscale mode = off
		osd crush chooseleaf type = 0
		osd max object name len = 256
		osd client watch timeout = 10
		# A group of one OSD that was stopped for longer than its lease, 16 s by default, can stay "laggy" forever.
		osd pool default read lease ratio = 100
		mon data avail crit = 0
		mon allow pool size one = true
		mon warn on pool no redundancy = false
		mgr initial modules =
		[mon]
		keyring = $cluster/mon/keyring
		[client]
		log file =
	CONF
}

make_key() { # NAME CAPABILITY...
	local name=$1 caps=(); shift
	while [ $# -gt 0 ]; do caps+=(--cap "$1" "$2"); shift 2; done
	ceph-authtool --create-keyring "$cluster/$name.keyring" --gen-key --name "$name" "${caps[@]}"
}

start_daemon() { # mon|mgr|osd ID
	"ceph-$1" --id "$2" --foreground >> "$cluster/log/$1.$2.out" 2>&1 &
	daemon_pid[$1.$2]=$!
}

end_daemon() { # NAME [SIGNAL]: returns when it has ended
	kill "-${2-TERM}" "${daemon_pid[$1]}" 2> /dev/null
	wait "${daemon_pid[$1]}" 2> /dev/null
	unset "daemon_pid[$1]"
}

monitor_answers_or_ended() { has_no_monitor || timeout 20 ceph -s; }
has_no_monitor() { ! kill -0 "${daemon_pid[mon.a]}"; }
osds_are_up() { ceph osd stat | grep -q '2 osds: 2 up'; }

end_cluster() {
	local pid
	# With SIGCONT, because a test may have stopped them. What they have is in memory only.
	for pid in "${daemon_pid[@]}"; do kill -CONT "$pid"; kill -9 "$pid"; done 2> /dev/null
	wait "${daemon_pid[@]}" 2> /dev/null
	daemon_pid=()
}
