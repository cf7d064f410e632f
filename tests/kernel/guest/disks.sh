#!/bin/bash
# disks.sh COMBINATION... - a target on a disk that hangs, that fails, and that goes away, under checked writes.
#
# The disk is a device-mapper device over a memory-backed null_blk with a volatile cache. `dmsetup suspend` holds each
# operation, and the table of dm-flakey fails each write and flush. Namespace 2 of the target is memory.
# A combination is VOLUME,HOST,IO with VOLUME of disk|file|cached (a file in the page cache), HOST of kernel|isolane,
# and IO of uring|epoll.
. /guest/lib.sh
. /guest/kernel-target.sh
on_check_failed() { tail -n 15 /tmp/serve.log | sed 's/^/    target: /'; status | sed 's/^/    /'; dmesg | tail -n 10 | sed 's/^/    kernel: /'; }
ADDR=127.0.0.1 PORT=4420 NQN=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001
uri=nvme+tcp://$ADDR:$PORT/$NQN blocks=4096
modprobe null_blk nr_devices=0; modprobe nvme-tcp; modprobe ext4; modprobe dm-mod; modprobe dm-flakey

# ---- the disk ---------------------------------------------------------------------------------
linear() { echo "0 $sectors linear $lower 0"; }
failing() { echo "0 $sectors flakey $lower 0 0 3600 1 error_writes"; }
suspend() { dmsetup suspend --noflush --nolockfs disk; }
set_table() { suspend && dmsetup load disk --table "$1" && dmsetup resume disk; }
mount_disk() { mount -t ext4 -o commit=600 /dev/dm-0 /mnt; }
new_disk() {
	null_disk disk size=128 cache_size=128 blocksize=4096
	lower=$(null_device disk); sectors=$(cat "/sys/block/${lower#/dev/}/size")
	dmsetup create disk --table "$(linear)" && wait_for 10 [ -b /dev/dm-0 ] || return
	volume=/dev/dm-0
	[ "$kind" = disk ] && return
	volume=/mnt/volume
	mkfs.ext4 -q -F /dev/dm-0 && mount_disk && dd if=/dev/zero of=$volume bs=1M count=32 conv=fsync status=none
}
remove_disk() {
	dmsetup resume disk; set_table "$(linear)"; stop_serving
	umount /mnt
	dmsetup remove --retry disk; echo 0 > "$nullb/disk/power"; rmdir "$nullb/disk"
} > /dev/null 2>&1

# ---- the target and its host ------------------------------------------------------------------
serve() {
	local options=,block-size=4096; [ "$kind" != cached ] || options+=,buffered
	cat > /tmp/serve.toml <<-TOML
		server = { mode = "sleep", io = "$io", stall-after = "1s", answer-within = "4s", control-socket = "/tmp/control" }
		port = [{ name = "local", listen = "$ADDR:$PORT" }]
		[[subsystem]]
		nqn = "$NQN"
		ports = ["local"]
		hosts = "any"
		namespace = [{ nsid = 1, volume = "$volume$options" }, { nsid = 2, volume = "mem:32M" }]
	TOML
	: > /tmp/serve.out
	isolane serve --config /tmp/serve.toml > /tmp/serve.out 2> /tmp/serve.log &
	server=$!
	wait_for 20 grep -q '^listening on ' /tmp/serve.out
}
stop_serving() { [ -z "${server-}" ] || { kill -9 "$server"; wait "$server"; server=; leave; }; }
reach() { # sets $disk, namespace 1 for $host
	disk="$uri?nsid=1"
	[ "$host" = isolane ] || { attach --ctrl-loss-tmo=0 && disk=$dev; }
}
leave() { [ "$host" = isolane ] || { nvme disconnect -n "$NQN"; wait_for 30 gone; }; }
starts() { new_disk && serve && reach; }
ctl() { timeout 15 isolane ctl --socket /tmp/control "$@"; }
status() { ctl status; }
is() { status | grep -q "^ *1  $1 "; } # STATE
# The writes to a file in the page cache have landed; their syncs hang.
has_orphan() { [ "$kind" = cached ] || status | grep -E 'orphan: write of [0-9]+ blocks from block [0-9]+, for [0-9]+ s at the volume'; }
logs() { grep -E "$volume: .*$1" /tmp/serve.log; } # PATTERN
other_works() {
	if [ "$host" = kernel ]; then
		dev=$(block_device 2) verify 16k 8 1m > /dev/null
	else
		isolane bench "$uri?nsid=2" --rw randrw --verify --bs 16k --depth 8 --size 1M --time 500ms > /dev/null
	fi
}
newcomer_connects() { timeout 40 isolane info "$uri" --host-nqn nqn.2014-08.org.example:newcomer > /dev/null; }
write_for() { # SECONDS: continues the journal
	durable write "$disk" --journal /tmp/journal --blocks $blocks --block-size 4096 --seconds "$1"
}
start_writer() { # SECONDS
	: > /tmp/durable.out
	write_for "$1" > /tmp/durable.out 2>&1 &
	writer=$!
	wait_for 20 grep -q ' begins$' /tmp/durable.out
}
writer_ended() { wait $writer; cat /tmp/durable.out; }
no_write_failed() { writer_ended && ! grep -q 'writer stopped' /tmp/durable.out; }
each_writer_failed() { writer_ended && [ "$(grep -c 'writer stopped' /tmp/durable.out)" = 4 ]; }
kept() { durable check "$disk" --journal /tmp/journal; }

# ---- a disk that hangs ------------------------------------------------------------------------
hangs() {
	start_writer 12 && sleep 1 && suspend || return
	# All writers can be in a flush.
	isolane bench "$uri?nsid=1" --rw write --bs 4k --size 4K --offset 20M --depth 1 --time 100ms > /dev/null 2>&1 & local load=$!
	wait_for 10 is stalled || return
	wait_for 20 logs 'has not completed .* commands within 4s' && wait_for 10 has_orphan && other_works && newcomer_connects || return
	has_orphan && status | grep 'a command has not completed for' && is stalled && dmsetup resume disk && wait_for 10 is online || return
	kill -9 $load 2> /dev/null; wait $load
	no_write_failed && kept && ! status | grep orphan
}
is_closing() { status | grep -F "$volume: no longer namespace 1, and closed once its operations end"; }
# An operator closes the volume while the disk hangs, and opens it while it hangs again.
is_operated() {
	local load=(isolane bench "$uri?nsid=1" --rw write --bs 4k --size 1M --offset 20M --fua --depth 4 --time)
	"${load[@]}" 100ms > /dev/null && suspend || return
	"${load[@]}" 100s > /dev/null 2>&1 & load=$!
	wait_for 10 is stalled || return
	timeout 40 isolane ctl --socket /tmp/control namespace reopen 1 > /tmp/reopen.out 2>&1; grep 'have not ended, so it stays offline' /tmp/reopen.out || return
	is offline && is_closing && other_works && newcomer_connects && dmsetup resume disk || return
	wait_for 10 eval '! is_closing' && suspend || return
	isolane ctl --socket /tmp/control namespace online 1 > /tmp/online.out 2>&1 & local opener=$!
	sleep 1; is offline && other_works && newcomer_connects && dmsetup resume disk || return
	wait $opener && wait_for 10 is online && kept; local result=$?
	kill -9 $load; wait $load 2> /dev/null; return $result
}
stops() { # while the disk hangs
	start_writer 60 && sleep 1 && suspend && wait_for 10 is stalled || return
	kill -TERM "$server"; wait_for 30 logs 'have not ended' || return
	echo "the log names the volume after the signal"
	dmsetup resume disk; wait "$server"; local result=$?; server=
	[ $result = 1 ] || { echo "status $result"; return 1; }
	leave; each_writer_failed && serve && reach && kept
}

# ---- a disk that fails ------------------------------------------------------------------------
nvme_status() { # STATUS COMMAND [OPTION...]: of the namespace of the kernel's host, as the target sends it
	local expected=$1; shift
	nvme "$@" 2>&1 | tee /dev/stderr | grep -q "($expected)"
}
for file in /tmp/a /tmp/b; do head -c 4096 /dev/urandom > $file; done
is_refused() { # writes and Flush for good; reads through the page cache
	if [ "$host" = isolane ]; then ! write_for 1; return; fi
	nvme_status 0x4280 flush "$dev" -n 1 && nvme_status 0x4280 write "$dev" -s 0 -c 0 -z 4096 -d /tmp/a || return
	if [ "$kind" = cached ]; then nvme_status 0x4281 read "$dev" -s 0 -c 0 -z 4096 -d /tmp/found
	else nvme read "$dev" -s 0 -c 0 -z 4096 -d /tmp/found; fi
}
opens_again() { # a file system that has failed must be mounted again
	if [ "$kind" = disk ]; then ctl namespace reopen 1; return; fi
	ctl namespace offline 1 && umount /mnt && mount_disk && ctl namespace online 1
}
fails() {
	write_for 2 && start_writer 30 && sleep 1 && set_table "$(failing)" && each_writer_failed || return
	wait_for 10 is failed && logs 'sync failed, writes may be lost: .*isolane ctl namespace reopen' || return
	set_table "$(linear)" && is_refused && is failed && other_works && opens_again || return
	wait_for 10 is online && kept && write_for 1 && kept
}

# The file system keeps the file's pages as clean after a failed sync, with data that the disk does not have.
shows_the_disk() {
	nvme write "$dev" -s 0 -c 0 -z 4096 -d /tmp/a && nvme flush "$dev" -n 1 && nvme write "$dev" -s 0 -c 0 -z 4096 -d /tmp/b || return
	set_table "$(failing)" && nvme_status 0x4280 flush "$dev" -n 1 && set_table "$(linear)" && ctl namespace reopen 1 || return
	wait_for 10 is online && nvme read "$dev" -s 0 -c 0 -z 4096 -d /tmp/found && dd if=$volume of=/tmp/there bs=4k count=1 iflag=direct || return
	cmp /tmp/found /tmp/there && cmp /tmp/a /tmp/there
}

# ---- a disk that goes away --------------------------------------------------------------------
is_removed() { ! dmsetup remove --force disk && dmsetup table disk | grep error; }   # it stays as long as it is open
is_back() { set_table "$(linear)"; }
is_unplugged() { echo 0 > "$nullb/disk/power"; }
is_plugged_in() { echo 1 > "$nullb/disk/power" && wait_for 10 [ -b "$volume" ]; }
# The writers may stop at writes that promise nothing, which leave the volume online.
durable_write_fails() { ! isolane bench "$uri?nsid=1" --rw write --fua --bs 4k --size 64K --time 100ms; }
goes() { # BEGIN END LOG
	start_writer 30 && sleep 1 && "$1" && each_writer_failed && durable_write_fails || return
	wait_for 10 is failed && logs "$3" && other_works || return
	"$2" && ctl namespace reopen 1 && wait_for 10 is online && kept && write_for 1 && kept
}
without_mapper() { # serve the disk below
	stop_serving; dmsetup remove --retry disk; volume=$lower
	serve && reach
}

of_a_disk() {
	check "an operator closes and opens a disk that hangs: $combination" is_operated &&
		check "a disk is removed, and comes back: $combination" goes is_removed is_back 'sync failed' &&
		check "serve without device-mapper: $combination" without_mapper &&
		check "a disk is unplugged, and comes back: $combination" \
			goes is_unplugged is_plugged_in 'the device is gone: .*isolane ctl namespace reopen'
}
for combination in "$@"; do
	IFS=, read -r kind host io <<< "$combination"
	rm -f /tmp/journal
	check "start: $combination" starts &&
		check "the disk hangs, and continues: $combination" hangs &&
		check "the disk fails, and works again: $combination" fails &&
		check "the target ends while the disk hangs: $combination" stops && {
			[ "$kind,$host" != cached,kernel ] ||
				check "reads after a failed sync show the disk: $combination" shows_the_disk
			[ "$kind" != disk ] || of_a_disk
		}
	remove_disk
done
exit 0
