#!/bin/bash
# vhost.sh SECTORS QUEUES KILLS - a disk that the driver exports over vhost-user, as /dev/vda: fio, a file system, and
# fio while the driver kills and restarts the export.
. /guest/lib.sh
sectors=$1 queues=$2 kills=$3
dev=/dev/vda engine=libaio
modprobe virtio_blk; modprobe ext4

is_described() {
	local queue=/sys/block/vda/queue
	wait_for 30 [ -b $dev ] || return 1
	grep -r . /sys/block/vda/{size,ro,serial,queue} 2> /dev/null
	[ "$(cat /sys/block/vda/size)" = "$sectors" ] && [ "$(cat /sys/block/vda/ro)" = 0 ] && grep -qE '^[0-9a-f]{20}$' /sys/block/vda/serial &&
		[ "$(ls /sys/block/vda/mq | wc -l)" = "$queues" ] && [ "$(cat $queue/write_cache)" = 'write back' ] &&
		[ "$(cat $queue/physical_block_size)" = 4096 ] && [ "$(cat $queue/discard_max_bytes)" -gt 0 ] &&
		[ "$(cat $queue/write_zeroes_max_bytes)" -gt 0 ]
}
has_file_system() { # with discards and flushes
	mkfs.ext4 -q -E discard $dev && mount -o discard $dev /mnt && head -c 8388608 /dev/urandom > /mnt/a && cp /mnt/a /mnt/b || return 1
	sync; rm /mnt/a; sync; echo 3 > /proc/sys/vm/drop_caches
	sha256sum /mnt/b && umount /mnt && fsck.ext4 -fn $dev
}
fio_until_stop() { # each pass uses new random offsets and data, and compares all of them
	while :; do
		verify 4k 16 16m --verify_backlog=64 --numjobs=2 --offset_increment=16m --group_reporting || return
		[ -e /tmp/stop ] && return 0
	done
}
kills_under_load() {
	local i
	fio_until_stop > /tmp/fio.log 2>&1 &
	for i in $(seq "$kills"); do
		sleep "$((RANDOM % 2)).$((RANDOM % 10))"
		ask kill || return 1
		echo "kill $i answered after $SECONDS s"
	done
	touch /tmp/stop
	wait $! || { echo "fio failed with status $?"; tail -n 20 /tmp/fio.log; return 1; }
	! dmesg | grep -i 'I/O error\|blocked for more'
}

check "the disk has size, serial number, queues, and limits" is_described || exit 1
check "fio verify 4k" verify 4k 16 8m --rw=randrw --verify_backlog=64
check "fio verify of any size with flushes" verify 4k 8 8m --bsrange=512-256k --bs_unaligned=0 --blockalign=512 --fsync=16
check "ext4 with discards" has_file_system
check "$kills kills of the export under fio" kills_under_load || exit 1
check "fio verify after the kills" verify 64k 8 8m
exit 0
