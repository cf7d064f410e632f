#!/bin/bash
# stalled.sh ADDR PORT NQN - ext4 survives a volume that does not complete anything for 90 s, and a namespace that is
# offline for 120 s, without an error; another namespace of the same connections works in the meantime.
ADDR=$1 PORT=$2 NQN=$3
. /guest/lib.sh
modprobe nvme-tcp; modprobe ext4

makes() { mkfs.ext4 -q -F -b 4096 "$(block_device 1)" && mount -t ext4 "$(block_device 1)" /mnt; }
write_until_stop() { # synced files of random data, with their checksums elsewhere
	local i=0
	while [ ! -e /tmp/stop ]; do
		i=$((i + 1))
		head -c 65536 /dev/urandom > /tmp/data
		dd if=/tmp/data of="/mnt/$((i % 200))" bs=64k conv=fsync status=none || { echo "file $i"; return 1; }
		(cd /tmp && sha256sum data | sed "s,data,/mnt/$((i % 200)),") > "/tmp/sums/$((i % 200))" || return 1
		echo $i > /tmp/written
	done
}
writes_more() { [ "$(cat /tmp/written)" -gt "$1" ]; }
does_not_write() { # for 3 s
	local before; before=$(cat /tmp/written)
	sleep 3; ! writes_more "$before"
}
other_works() { dev=$(block_device 2) verify 4k 16 4m; }
stays() { # SECONDS BEGIN END: while the driver holds the volume
	local before
	ask "$2" && wait_for 10 does_not_write || return 1
	before=$SECONDS
	other_works || return 1
	while [ $((SECONDS - before)) -lt "$1" ]; do sleep 1; done
	does_not_write || { echo "files were written in the meantime"; return 1; }
	before=$(cat /tmp/written)
	ask "$3" && wait_for 70 writes_more "$before"
}
writer_succeeds() {
	touch /tmp/stop
	wait "$writer" || { cat /tmp/writer.log; return 1; }
}
is_clean() { umount /mnt && fsck.ext4 -f -n "$(block_device 1)"; }
reads_what_was_written() {
	echo 3 > /proc/sys/vm/drop_caches
	! cat /tmp/sums/* | sha256sum -c | grep -v ': OK$'
}
no_errors() { ! dmesg | grep -iE 'reconnect|I/O error|resetting controller|nvme.*timeout|EXT4-fs (error|warning)|Remounting'; }

mkdir /tmp/sums; echo 0 > /tmp/written
check "attach to two namespaces" attach || exit 1
check "mkfs.ext4 and mount" makes || exit 1
write_until_stop > /tmp/writer.log 2>&1 &
writer=$!
check "files are written" wait_for 30 writes_more 5
check "a volume stalls for 90 s, the other namespace works, and writes go on" stays 90 stall resume
check "a namespace is offline for 120 s, the other works, and writes go on" stays 120 offline online
check "no write failed" writer_succeeds
check "the files have their data" reads_what_was_written
check "fsck" is_clean
check "the kernel saw no error and no lost connection" no_errors
check "detach" detach
exit 0
