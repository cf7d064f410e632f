#!/bin/bash
# subsystems.sh ADDR PORT NQN HOSTNQN ROUNDS - the driver adds and removes subsystems, maps volumes to other namespaces
# of two of them, and changes the number of queues, while fio verifies another subsystem.
ADDR=$1 PORT=$2 NQN=$3 HOST=$4 ROUNDS=$5
. /guest/lib.sh
# A restart during a reconnect loses an admin command, and the host waits for its timeout (default 60 s).
modprobe nvme-core admin_timeout=10; modprobe nvme-tcp
engine=libaio    # see restart.sh
trap '' PIPE

with() { local NQN=$1; shift; "$@"; }   # NQN COMMAND...: for another subsystem
device() { with "$1" block_device "$2"; }
connect() { nvme connect -t tcp -a "$ADDR" -s "$PORT" -n "$1" -q "$HOST" -k 30 --reconnect-delay=1; }

# Ten subsystems, NQN-0 to NQN-9, each with a namespace of 16 MiB.
all_at_once() { # COMMAND...: with the NQN of each of the ten
	local n children=()
	for n in 0 1 2 3 4 5 6 7 8 9; do "$@" "$NQN-$n" & children+=($!); done
	for n in "${children[@]}"; do wait "$n" || return 1; done
}
is_attached() { wait_for 30 device "$1" 1; }
writes() { # random data after the NQN, by which the driver knows it
	local file=/tmp/data-${1##*-}
	dd if=/dev/urandom of="$file" bs=64k count=4 && echo "$1" | dd of="$file" conv=notrunc || return
	dd if="$file" of="$(device "$1" 1)" bs=64k oflag=direct
}
reads() { [ "$(dd if="$(device "$1" 1)" bs=64k count=4 iflag=direct | md5sum)" = "$(md5sum < "/tmp/data-${1##*-}")" ]; }
ten_keep_data() {
	all_at_once writes && all_at_once reads && ask ten-written
}
disconnect() { # nvme-cli can abort with a double free if other controllers of its list go meanwhile
	local status
	while nvme disconnect -n "$1"; status=$?; [ $status = 134 ]; do :; done
	[ $status = 0 ] && with "$1" wait_for 30 gone
}
comes_and_goes() { # the host disconnects immediately, without a wait for the namespace
	local n
	for ((n = 1; n <= ROUNDS; n++)); do
		ask add-one "$n" && connect "$NQN-$n" && disconnect "$NQN-$n" && ask remove-one "$n" || { echo "subsystem $n"; return 1; }
	done
}

# Volumes 1 to 4 of 256, 512, 768, and 1,024 KiB are namespaces 1 and 2 of NQN-a and NQN-b. Their UUIDs end with ROUND, PLACE (1
# to 4), and VOLUME, two digits each.
place_device() { # PLACE
	local subsystem=a
	[ "$1" -lt 3 ] || subsystem=b
	device "$NQN-$subsystem" $(((($1 - 1) & 1) + 1))
}
nothing_is_mapped() { ! place_device 1 && ! place_device 2 && ! place_device 3 && ! place_device 4; }
is_mapped() { # ROUND PLACE: sets $volume
	local name uuid size; name=$(place_device "$2") || return 1
	{ read -r uuid < "/sys/block/${name#/dev/}/uuid" && read -r size < "/sys/block/${name#/dev/}/size"; } 2> /dev/null || return 1
	volume=${uuid: -1}
	[ "${uuid: -6:4}" = "$(printf '%02d%02d' "$1" "$2")" ] && [ "$size" = $((volume * 512)) ]
}
all_are_mapped() { is_mapped "$1" 1 && is_mapped "$1" 2 && is_mapped "$1" 3 && is_mapped "$1" 4; }
replaces_data() { # PLACE VOLUME: all data of the volume is from the last round; all of it changes
	local name; name=$(place_device "$1")
	[ "$(md5sum < "$name")" = "$(md5sum < "/tmp/volume-$2")" ] || { echo "place $1 has other data than volume $2"; return 1; }
	dd if=/dev/urandom of="/tmp/volume-$2" bs=64k count=$((4 * $2))
	dd if="/tmp/volume-$2" of="$name" bs=64k conv=fsync && [ "$(md5sum < "$name")" = "$(md5sum < "/tmp/volume-$2")" ]
}
has_its_data() { # ROUND
	local place volume
	for place in 1 2 3 4; do is_mapped "$1" $place && replaces_data $place "$volume" || return 1; done
}
remaps() {
	local round
	for ((round = 1; round <= ROUNDS; round++)); do
		[ $round = 1 ] || ask unmap && wait_for 20 nothing_is_mapped && ask map $round && wait_for 20 all_are_mapped $round && has_its_data $round \
			|| { echo "round $round"; return 1; }
	done
}
remaps_rapidly() { # a host that finds another namespace at an ID removes its device, and finds the new one at the next scan
	local round
	for ((round = 51; round <= 50 + ROUNDS; round++)); do
		ask unmap && ask map $round || return 1
		wait_for 3 all_are_mapped $round || rescan
		wait_for 20 all_are_mapped $round && has_its_data $round || { echo "round $round"; return 1; }
	done
}
rescan() {
	local n
	for n in a b; do echo 1 > "$(echo "$(with "$NQN-$n" subsystem_dir)"/nvme*/rescan_controller)"; done
}

# Queues.
queue_count() { cat "$(subsystem_dir)"/nvme*/queue_count; }
has_queues() { [ "$(queue_count)" = $(($1 + 1)) ] && [ "$(cat "$(subsystem_dir)"/nvme*/state)" = live ]; }
gets_queues() { # COUNT, after a restart of the target
	ask queues "$1" && wait_for 60 has_queues "$1" && fio_passes && has_queues "$1"
}

check "attach" attach -q "$HOST" || exit 1
fio_starts 1m --rate_iops=300    # leaves time for the changes
check "ten subsystems are added" ask add-ten
check "all ten are connected at once" all_at_once connect
check "each has its namespace" all_at_once is_attached
check "each keeps its own data" ten_keep_data
check "all ten are disconnected at once" all_at_once disconnect
check "ten subsystems are removed" ask remove-ten
check "a subsystem is added, connected, disconnected, and removed $ROUNDS times" comes_and_goes
for volume in 1 2 3 4; do dd if=/dev/zero of="/tmp/volume-$volume" bs=64k count=$((4 * volume)) 2> /dev/null; done
check "connect two subsystems without namespaces" eval 'ask add-two && connect "$NQN-a" && connect "$NQN-b"'
check "volumes are mapped to other namespaces $ROUNDS times, and keep size and data" remaps
check "the same while the host has not seen that they are gone" remaps_rapidly
check "disconnect both" eval 'disconnect "$NQN-a" && disconnect "$NQN-b"'
check "no connection was lost, and no I/O failed" connections_stay
check "fewer queues after a restart of the target" gets_queues 1
check "more queues after a restart of the target" gets_queues 2
check "fio finds no wrong data" fio_is_verified
check "detach" detach
exit 0
