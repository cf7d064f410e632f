#!/bin/bash
# restart.sh ADDR PORT NQN KILLS - the driver kills and restarts the target under fio; the kernel's
# host reconnects and replays, and fio finds no wrong data.
ADDR=$1 PORT=$2 NQN=$3
. /guest/lib.sh
[ -z "${STANDIN-}" ] || { . /guest/kernel-target.sh; ask() { kernel_target_restart "$NQN"; }; }
# A kill during a reconnect loses an admin command, and the host waits for its timeout (default 60 s).
modprobe nvme-core admin_timeout=10; modprobe nvme-tcp
# With io_uring, which submits with NOWAIT, requests that wait for a path fail with EAGAIN.
engine=libaio
kills=$4
# nvme-tcp sends in the context of the process that submits, without MSG_NOSIGNAL. A connection that
# breaks at that moment kills the process, and then fio crashes on the state of its killed job.
trap '' PIPE

fio_until_stop() { # each pass uses new random offsets and data, and compares all of them
	while :; do
		verify 4k 16 4m --verify_backlog=64 || return
		[ -e /tmp/stop ] && return 0
	done
}
kills_under_load() {
	local i
	fio_until_stop > /tmp/fio.log 2>&1 &
	for i in $(seq "$kills"); do
		sleep "$((RANDOM % 3)).$((RANDOM % 10))"
		ask kill || return 1
		echo "kill $i answered after $SECONDS s"
	done
	touch /tmp/stop
	wait $! || { echo "fio failed with status $?"; tail -n 20 /tmp/fio.log; return 1; }
}

check "attach for restarts" attach || exit 1
check "$kills kills of the target under fio" kills_under_load
check "verify after the restarts" verify 64k 8 8m
check "detach after restarts" detach
exit 0
