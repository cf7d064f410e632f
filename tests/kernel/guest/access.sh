#!/bin/bash
# access.sh ADDR LEFT RIGHT NQN HOSTNQN - the driver changes which namespaces, ports, and subsystems this host may reach
# while fio verifies a namespace that stays. LEFT and RIGHT are ports of the target.
ADDR=$1 PORT=$2 RIGHT=$3 NQN=$4 HOST=$5
. /guest/lib.sh
modprobe nvme-tcp
engine=libaio    # with io_uring, which submits with NOWAIT, requests that wait for a path fail with EAGAIN
trap '' PIPE     # nvme-tcp sends on behalf of the process that submits: see restart.sh

# Namespaces: 1 stays, 2 comes and goes, 3 and 4 are for another host only.
second() { # [FIO OPTION...]: on the second namespace
	fio --name=second --filename="$(block_device 2)" --direct=1 --bs=64k --iodepth=8 --ioengine=libaio --size=8m \
		--rw=write --verify=crc32c --verify_fatal=1 "$@"
}
ids_are() { [ "$(nvme list-ns /dev/nvme0 | sed 's/.*://' | xargs)" = "$*" ] || { nvme list-ns /dev/nvme0; return 1; }; }
identity() { nvme id-ns /dev/nvme0 -n "$1" | tail -n +2; }
is_unknown() { # as an ID that no namespace has
	[ "$(identity "$1")" = "$(identity 99)" ] && ! nvme ns-descs /dev/nvme0 -n "$1"
}
sees_its_own() {
	wait_for 20 block_device 2 && absent 3 && ids_are 0x1 0x2 && is_unknown 3 && second
}
loses() { # and the other host does not
	ask hide && wait_for 20 absent 2 && ids_are 0x1 && is_unknown 2
}
notices() { dmesg | grep -c 'rescanning namespaces'; }
regains() { # without a notice of the changes that the driver makes to hidden namespaces before
	local before; before=$(notices)
	ask change-hidden && nvme id-ctrl /dev/nvme0 || return
	ask show && wait_for 20 block_device 2 && second --verify_only || return
	[ "$(notices)" = $((before + 1)) ] || { echo "$(($(notices) - before)) notices"; return 1; }
	ids_are 0x1 0x2
}
loses_and_regains_often() {
	local round
	for round in 1 2 3 4 5; do
		loses && ask show && wait_for 20 block_device 2 || { echo "round $round"; return 1; }
	done
	second --verify_only
}

# Two paths.
path_state() { cat "/sys/class/nvme/nvme$1/state"; }
is_live() { [ "$(path_state 1)" = live ]; }
is_lost() { [ "$(path_state 1)" = connecting ]; }
path_writes() { local blocks=(/sys/block/nvme*c1n*/stat); awk '$5 > 0 { sum += $5 } END { print sum + 0 }' "${blocks[@]}"; }
both_work() { # fio uses the second path
	local before
	wait_for 30 is_live && fio_passes || return
	before=$(path_writes)
	fio_passes && [ "$(path_writes)" -gt "$before" ]
}
connects_twice() {
	nvme connect -t tcp -a "$ADDR" -s "$RIGHT" -n "$NQN" -q "$HOST" -k 30 --reconnect-delay=1 || return
	echo round-robin > "$(subsystem_dir)/iopolicy" && both_work
}
loses_port() { ask close-right && wait_for 20 is_lost && fio_passes; }
regains_port() { ask open-right && both_work; }
no_errors() { ! dmesg | grep -iE 'I/O error|timeout|nvme0:.*reconnect|resetting controller'; }

# The discovery service.
discovery_device() {
	local d
	for d in /sys/class/nvme/nvme*; do
		! grep -q discovery "$d/subsysnqn" || { echo "/dev/${d##*/}"; return 0; }
	done
	return 1
}
events() { grep -c '^NVME_AEN=0x70f002$' /tmp/events; }
listed() { nvme discover -d "$discovery" | grep -q "subnqn: *$1\$"; }
watches() {
	nvme discover -t tcp -a "$ADDR" -s "$PORT" -q "$HOST" -k 30 --persistent > /tmp/log || return
	discovery=$(discovery_device) || return
	uevent sh -c env > /tmp/events 2>&1 &
	wait_for 10 pidof uevent && listed "$NQN"
}
one_event_follows() { # REQUEST: changes of which one concerns this host
	local before; before=$(events)
	ask "$1" && wait_for 20 changed "$before" && nvme id-ctrl "$discovery" || return
	[ "$(events)" = $((before + 1)) ] || { echo "$(($(events) - before)) events"; return 1; }
}
changed() { [ "$(events)" != "$1" ]; }
is_added() { one_event_follows add-subsystems && listed "$NQN" && listed "$NQN-more" && ! listed "$NQN-hidden"; }
connects_new() {
	nvme connect -t tcp -a "$ADDR" -s "$PORT" -n "$NQN-more" -q "$HOST" && nvme disconnect -n "$NQN-more" || return
	! nvme connect -t tcp -a "$ADDR" -s "$PORT" -n "$NQN-hidden" -q "$HOST"
}
is_removed() { one_event_follows remove-subsystems && listed "$NQN" && ! listed "$NQN-more"; }
again() { is_added && is_removed; }

check "attach to a subsystem with masked namespaces" attach -q "$HOST" || exit 1
check "the host sees its two namespaces, and no other one" sees_its_own
fio_starts 2m
check "a namespace that the host may no longer see disappears" loses
check "it comes back with its data, and hidden changes cause no notice" regains
check "it goes and comes back again, five times" loses_and_regains_often
check "fio uses a second port as well" connects_twice
check "a removed port loses its path, and fio goes on" loses_port
check "the port comes back, and fio uses it again" regains_port
check "a persistent discovery controller" watches
check "one event announces a new subsystem" is_added
check "the new subsystem accepts this host, and a hidden one does not" connects_new
check "one event announces its end" is_removed
check "the same again" again
check "fio finds no wrong data" fio_is_verified
check "no I/O failed, and the first path was never lost" no_errors
check "disconnect the discovery controller" nvme disconnect -d "$discovery"
check "detach" detach
exit 0
