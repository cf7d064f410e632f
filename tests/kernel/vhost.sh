#!/bin/bash
# vhost.sh - `isolane export --vhost-user-blk` with QEMU and Linux: fio and a file system in a guest, kills of the
# export under fio, and a guest that starts from the export.
#
# Needs target/release/isolane and the packages of .ci/packages.
set -u
. "$(dirname "$0")/../lib.sh"
kernel=6.12 kills=10 size=256M export_pid=
trap '[ -z "$export_pid" ] || kill -9 "$export_pid" 2> /dev/null; finish' EXIT

start_export() { # NAME VOLUME: returns once it accepts connections
	: > "$logs/export-$1.out"
	"$isolane" export "$2" --vhost-user-blk "$work/$1.sock" < /dev/null > "$logs/export-$1.out" 2>> "$logs/export-$1.log" &
	export_pid=$!
	wait_for 30 exports_or_ended "$1" && grep -q '^exporting on vhost-user-blk ' "$logs/export-$1.out" && return 0
	tail -n 20 "$logs/export-$1.log"
	return 1
}
exports_or_ended() {
	grep -q '^volume: ' "$logs/export-$1.out" || ! kill -0 "$export_pid"
}
end_export() { # SIGNAL: returns the exit status
	local pid=$export_pid
	export_pid=
	kill "-$1" "$pid"; wait "$pid" 2> /dev/null
}
disk() { # NAME [OPTION...]: arguments of QEMU
	echo "-object memory-backend-memfd,id=mem0,size=1G,share=on -machine memory-backend=mem0" \
		"-chardev socket,id=disk0,path=$work/$1.sock,reconnect=1 -device vhost-user-blk-pci,chardev=disk0${*:2}"
}
repeats_requests() { grep 'repeating [0-9]* unfinished requests' "$logs/export-fio.log"; }

serves_guest() { # VOLUME
	volume=$1
	# With delays, requests are in flight most of the time, and complete in any order.
	on_ask() { end_export KILL; sleep "0.$((RANDOM % 10))"; start_export fio "delay:1ms-10ms:($volume)"; }
	: > "$logs/export-fio.log"
	start_export fio "$volume" || return 1
	guest vhost-fio $kernel 600 -q "$(disk fio ,num-queues=2)" -- vhost.sh $((256 << 11)) 2 $kills
	check "the killed exports left requests, and their successors repeated them" repeats_requests
	check "the export ends with status 0 on SIGTERM" end_export TERM
}
starts_guest() {
	local files=() f
	for f in "$tests"/kernel/guest/*; do files+=(-f "$f:/guest/${f##*/}"); done
	"$tests/kernel/guest.sh" -B -k $kernel -d "$work/boot.img" "${files[@]}" -f "$tests/checks.sh:/guest/checks.sh" \
		"$tests/kernel/guest/started.sh" && start_export boot "$work/boot.img"
}

"$tests/kernel/guest.sh" -B -k $kernel || exit 1
{
	serves_guest "$work/disk.img,size=$size"
	check "a disk with a kernel is exported" starts_guest && {
		guest vhost-boot $kernel 300 -d - -q "$(disk boot ,bootindex=0)" -- started.sh
		check "its export ends with status 0 on SIGTERM" end_export TERM
	}
} 2>&1 | tee "$logs/vhost-guest.results"
tally "$logs/vhost-guest.results"
