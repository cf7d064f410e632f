#!/bin/bash
# nbd.sh - `isolane export` with the clients of others: libnbd, qemu, and fio.
#
# Needs target/release/isolane and the packages of .ci/packages. Every export listens on a socket in a temporary
# directory.
set -u
. "$(dirname "$0")/lib.sh"
declare -A export_pid=()
size=64M

end_exports() {
	local name
	for name in "${!export_pid[@]}"; do kill -9 "${export_pid[$name]}" 2> /dev/null; done
}
trap 'end_exports; finish' EXIT

sock() { echo "$work/$1.sock"; }
uri() { echo "nbd+unix:///?socket=$(sock "$1")"; }
raw() { timeout -k 5 60 "$tests/nbd_clients.py" "$1" "$(sock "$2")" "${@:3}"; }
# A program that no longer reaches its server must not hang the suite.
limited() { timeout -k 5 60 "$@"; }

start_export() { # NAME VOLUME [OPTION...]: returns once it accepts connections
	local name=$1; shift
	[ -z "${export_pid[$name]-}" ] || end_export "$name" KILL    # of a check that failed
	: > "$logs/export-$name.out"
	"$isolane" export "$@" --nbd "$(sock "$name")" < /dev/null > "$logs/export-$name.out" 2>> "$logs/export-$name.log" &
	export_pid[$name]=$!
	wait_for 30 exports_or_ended "$name" && grep -q '^exporting on ' "$logs/export-$name.out" && return 0
	tail -n 20 "$logs/export-$name.log"
	return 1
}
exports_or_ended() {
	grep -q '^volume: ' "$logs/export-$1.out" || ! kill -0 "${export_pid[$1]}"
}
end_export() { # NAME SIGNAL: returns the exit status
	local pid=${export_pid[$1]}
	unset "export_pid[$1]"
	kill "-$2" "$pid"; wait "$pid" 2> /dev/null
}
stop_export() { # NAME: a clean shutdown leaves no socket
	end_export "$1" TERM || { tail -n 20 "$logs/export-$1.log"; return 1; }
	[ ! -e "$(sock "$1")" ]
}

copies() { # VOLUME: there and back
	start_export copy "$1" || return 1
	limited nbdcopy "$work/data.img" "$(uri copy)" && limited nbdcopy "$(uri copy)" "$work/back.img" &&
		cmp -n $((64 << 20)) "$work/data.img" "$work/back.img" || return 1    # a mirror is larger
	stop_export copy
}
shows_info() {
	start_export info "mem:$size" --name disk || return 1
	limited nbdinfo --json "$(uri info)" > "$work/info.json" || return 1
	python3 -c '
import json, sys
[export] = json.load(open(sys.argv[1]))["exports"]
expected = {"export-name": "disk", "export-size": 64 << 20, "is_read_only": False, "can_multi_conn": True, "can_flush": True,
            "can_fua": True, "can_trim": True, "can_zero": True, "can_df": True, "block_size_minimum": 512,
            "block_size_preferred": 4096, "block_size_maximum": 32 << 20, "description": "mem:64M"}
wrong = {key: export.get(key) for key, value in expected.items() if export.get(key) != value}
assert not wrong, wrong' "$work/info.json" || return 1
	limited nbdinfo --list "$(uri info)" | grep 'export="disk"' || return 1
	limited nbdinfo --map "$(uri info)" | grep -E '^ +0 +67108864 +3 +hole,zero' || return 1
	[ "$(stat -c %a "$(sock info)")" = 600 ] && stop_export info
}
sockets() {
	local pid
	start_export first mem:1M || return 1
	! limited "$isolane" export mem:1M --nbd "$(sock first)" 2> "$work/error" || return 1
	grep -F "cannot listen on $(sock first): another program listens there; stop it" "$work/error" || { cat "$work/error"; return 1; }
	end_export first KILL
	[ -S "$(sock first)" ] && start_export first mem:1M && stop_export first || return 1
	: > "$(sock file)"
	! limited "$isolane" export mem:1M --nbd "$(sock file)" 2> "$work/error" && grep 'is not a socket; choose' "$work/error" || return 1
	"$isolane" export mem:1M --nbd 0.0.0.0:0 --nbd 127.0.0.1:0 > "$work/out" 2> "$work/error" & pid=$!
	wait_for 30 grep -q '^volume: ' "$work/out"; kill -TERM $pid; wait $pid || return 1
	[ "$(grep -c 'without authentication or encryption' "$work/error")" = 1 ] && grep -c '^exporting on nbd://' "$work/out" | grep -qx 2
}
converts() { # with qemu-img
	start_export qemu "$work/qemu.img,size=$size" || return 1
	limited qemu-img info "$(uri qemu)" | grep -F 'virtual size: 64 MiB' || return 1
	limited qemu-img convert -q -f raw -O qcow2 "$work/data.img" "$work/data.qcow2" || return 1
	limited qemu-img convert -q -n -f qcow2 -O raw "$work/data.qcow2" "$(uri qemu)" || return 1
	limited qemu-img compare -f raw -F raw "$work/data.img" "$(uri qemu)" || return 1
	limited qemu-img convert -q -f raw -O qcow2 "$(uri qemu)" "$work/back.qcow2" && limited qemu-img compare "$work/data.qcow2" "$work/back.qcow2" || return 1
	limited qemu-img map --output=json "$(uri qemu)" > "$work/map.json" || return 1
	stop_export qemu
}
qemu_io() {
	start_export io "mem:$size" || return 1
	limited qemu-io -f raw -c 'write -P 17 1M 1M' -c 'write -f -P 18 2M 64k' -c 'writev -P 19 3M 4k 8k' -c flush \
		-c 'discard 1M 512k' -c 'write -z 2M 32k' -c 'write -z -u 8M 16M' -c 'read -P 17 1536k 512k' \
		-c 'read -P 0 2M 32k' -c 'read -P 18 2080k 32k' -c 'read -P 19 3M 12k' "$(uri io)" > "$work/out" 2>&1 || { cat "$work/out"; return 1; }
	! grep -Ei 'failed|error' "$work/out" && [ "$(grep -c '^\(read\|wrote\|discard\)' "$work/out")" = 10 ] || { cat "$work/out"; return 1; }
	stop_export io
}
fio_verify() { # URI [OPTION...]
	limited fio --thread --name=verify --ioengine=nbd --uri="$1" --rw=randrw --bsrange=512-64k --bs_unaligned=0 --blockalign=512 --iodepth=16 \
		--size=32M --verify=crc32c --verify_backlog=256 --verify_fatal=1 --randrepeat=0 --fsync=64 --aux-path="$work" "${@:2}"
}
verifies() { # VOLUME
	start_export fio "$1" || return 1
	(cd "$work" && fio_verify "$(uri fio)" --numjobs=4 --offset_increment=16M --size=16M --group_reporting) || return 1
	stop_export fio
}
survives_kill() { # under libnbd with a record of flushed blocks, and under fio
	local volume=$work/kill.img,size=$size writer load round
	start_export kill "$volume" || return 1
	(cd "$work" && fio_verify "$(uri kill)" --offset=32M --size=16M --rw=randwrite --bs=4k) || return 1
	for round in 1 2 3; do
		rm -f "$work/flushed"; raw write_until_killed kill "$work/flushed" & writer=$!
		# The engine of fio never ends without its server. With --thread it is one process.
		(cd "$work" && exec fio --thread --name=load --ioengine=nbd --uri="$(uri kill)" --rw=randwrite --bs=4k --iodepth=16 --offset=48M \
			--size=16M --time_based --runtime=60 > /dev/null 2>&1) & load=$!
		wait_for 30 has_lines "$work/flushed" 20; sleep "0.$((RANDOM % 5))"
		end_export kill KILL; kill -KILL $load; wait $load 2> /dev/null; wait $writer || return 1
		start_export kill "$volume" && raw verify_flushed kill "$work/flushed" || return 1
	done
	(cd "$work" && fio_verify "$(uri kill)" --offset=32M --size=16M --rw=randwrite --bs=4k --verify_only) || return 1
	stop_export kill
}
has_lines() { [ "$(wc -l < "$1")" -ge "$2" ]; }
survives_restart_of_target() { # of a remote volume, under fio
	local fio port
	port=$(free_port)
	start_target remote "$port" "$work/remote.img,size=$size" || return 1
	start_export remote "nvme+tcp://127.0.0.1:$port/$nqn?nsid=1" || return 1
	(cd "$work" && fio_verify "$(uri remote)" --size=48M --time_based --runtime=6) > "$work/fio.out" 2>&1 & fio=$!
	sleep 1; restart_target remote KILL || return 1
	sleep 1; restart_target remote TERM || return 1
	wait $fio || { tail -n 20 "$work/fio.out"; return 1; }
	stop_export remote && end_target remote TERM
}
stops_under_load() {
	local writer
	start_export load "$work/load.img,size=$size" || return 1
	rm -f "$work/flushed"; raw write_until_killed load "$work/flushed" & writer=$!
	wait_for 30 has_lines "$work/flushed" 20
	stop_export load && wait $writer || return 1
	start_export load "$work/load.img" && raw verify_flushed load "$work/flushed" && stop_export load
}

status=0
head -c "$size" /dev/urandom > "$work/data.img"
dd if=/dev/zero of="$work/data.img" bs=1M seek=20 count=20 conv=notrunc status=none

check "nbdinfo shows size, flags, block sizes, and holes" shows_info || status=1
start_export raw "mem:$size" && {
	check "wrong options get errors, and the connection continues" raw options raw || status=1
	check "wrong requests get errors, and the connection continues" raw requests raw || status=1
	check "hostile connections disturb no other" raw hostile raw || status=1
	check "libnbd: chunks, extents, durable writes, several connections" raw library raw || status=1
	check "a clean end after all of these" stop_export raw || status=1
}
start_export ro "mem:$size,ro" && {
	check "read-only volume rejects changes" raw read_only ro || status=1
	stop_export ro
}
check "sockets: private, dead ones replaced, live ones named; one warning for open addresses" sockets || status=1
for volume in "mem:$size" "mem:$size,block-size=4096" "$work/file.img,size=$size" "$work/buffered.img,size=$size,buffered" \
	"stripe:64k:mem:32M;($work/a.img,size=32M)" "mirror:($work/m1.img,size=65M);($work/m2.img,size=65M),bitmap=$work/bitmap,create=yes" \
	"delay:100us:mem:$size" "stall:20ms:mem:$size,one-in=50,seed=7"; do
	check "nbdcopy there and back: ${volume//$work\//}" copies "$volume" || status=1
done
port=$(free_port)
start_target copy "$port" "mem:$size" && {
	check "nbdcopy there and back: remote volume" copies "nvme+tcp://127.0.0.1:$port/$nqn?nsid=1" || status=1
	end_target copy TERM
}
check "qemu-img info, convert, compare, map" converts || status=1
check "qemu-io with zeroes, discards, and durable writes" qemu_io || status=1
check "fio verify with four connections: memory" verifies "mem:$size" || status=1
check "fio verify with four connections: file" verifies "$work/fio.img,size=$size" || status=1
check "kill -9 loses no flushed write" survives_kill || status=1
check "a remote volume survives restarts of its target" survives_restart_of_target || status=1
check "SIGTERM under load completes requests, flushes, and removes the socket" stops_under_load || status=1
exit $status
