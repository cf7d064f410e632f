#!/bin/bash
# power.sh CUTS COMBINATION... - a target on a disk that loses its volatile cache in a power cut.
# No write that was acknowledged with FUA or flushed is lost.
#
# The disk is a memory-backed null_blk with a cache: the first write of a page goes to the cache,
# FUA and flush reach the medium, and a power cut discards the cache. Later writes of a page on the
# medium go to the medium, so the region is much larger than the data written to it. The first check
# is the control: it expects every completed write to survive, and must fail.
# A combination is VOLUME,HOST,IO with VOLUME of disk|file, HOST of kernel|isolane, and IO of
# uring|epoll.
. /guest/lib.sh
. /guest/kernel-target.sh
cuts=$1; shift
ADDR=127.0.0.1 PORT=4420 NQN=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001
region_mib=256
modprobe null_blk nr_devices=0; modprobe nvme-tcp; modprobe ext4

serve() { # DISK: on $ADDR:$PORT, by Isolane or, with STANDIN, by the kernel
	if [ -n "${STANDIN-}" ]; then kernel_target_start "$ADDR" "$PORT" "$NQN" "${1%%,*}"; return; fi
	: > /tmp/serve.out   # the output of the last target must not satisfy the wait below
	isolane serve "$1" --listen "$ADDR:$PORT" --nqn "$NQN" --io "$io" > /tmp/serve.out 2> /tmp/serve.log &
	server=$!
	wait_for 20 grep -q '^listening on ' /tmp/serve.out || { cat /tmp/serve.log; return 1; }
}
stop_serving() {
	if [ -n "${STANDIN-}" ]; then kernel_target_end "$NQN"; return; fi
	[ -z "${server-}" ] || { kill -9 "$server"; wait "$server"; } 2>/dev/null
	server=
}
reach() { # sets $disk for $host
	disk="nvme+tcp://$ADDR:$PORT/$NQN"
	[ "$host" = isolane ] || { attach --ctrl-loss-tmo=0 && disk=$dev; }
}
leave() { [ "$host" = isolane ] || { nvme disconnect -n "$NQN"; wait_for 30 gone; }; }

power_off() { echo 0 > "$nullb/disk/power"; }
power_on() { echo 1 > "$nullb/disk/power"; wait_for 10 null_device disk; }

volume() { # the disk, or a file in a file system on it
	case $kind in disk) echo "$(null_device disk),block-size=4096";; file) echo "/mnt/volume,size=$region_mib"M,block-size=4096;; esac
}
prepare() {
	[ "$kind" = disk ] && return
	mkfs.ext4 -q -F "$(null_device disk)" && mount -t ext4 "$(null_device disk)" /mnt
	truncate -s ${region_mib}M /mnt/volume && sync
}
unmount() { [ "$kind" = disk ] || umount /mnt; }
mount_again() { [ "$kind" = disk ] || mount -t ext4 "$(null_device disk)" /mnt; }

cut_under_load() { # CLAIM: serve, write, cut the power at a random moment, serve again, check
	local writer status
	serve "$(volume)" && reach || return 1
	: > /tmp/durable.out   # that of the last cut must not satisfy the wait below
	durable write "$disk" --journal /tmp/journal --blocks $((region_mib * 256)) --block-size 4096 --seconds 20 --level "$1" > /tmp/durable.out 2>&1 &
	writer=$!
	wait_for 60 grep -q ' begins$' /tmp/durable.out || { cat /tmp/durable.out; return 1; }
	sleep "$((RANDOM % 2)).$((RANDOM % 9 + 1))"; sleep 1
	power_off
	leave > /dev/null 2>&1; stop_serving; kill -0 $writer 2>/dev/null && sleep 1; kill $writer 2>/dev/null
	wait $writer || { cat /tmp/durable.out; return 1; }
	cat /tmp/durable.out
	unmount; power_on && mount_again && serve "$(volume)" && reach || return 1
	durable check "$disk" --journal /tmp/journal; status=$?
	leave; stop_serving
	return $status
}
control() { ! cut_under_load completed && grep -q 'broke a promise' "$check_log"; }

new_disk() {
	stop_serving 2>/dev/null   # after a failed check
	[ ! -d "$nullb/disk" ] || { umount /mnt 2>/dev/null; power_off; rmdir "$nullb/disk"; }
	rm -f /tmp/journal
	null_disk disk size=$((2 * region_mib)) cache_size=$region_mib blocksize=4096 && prepare
}
several_cuts() { local i; for i in $(seq "$cuts"); do echo "cut $i"; cut_under_load durable || return 1; done; }

io=auto kind=disk host=kernel
new_disk
check "control: a power cut loses data that was not flushed" control
for combination in "$@"; do
	IFS=, read -r kind host io <<< "$combination"
	new_disk
	check "$cuts power cuts, $kind volume with $io, written by the $host host" several_cuts
done
exit 0
