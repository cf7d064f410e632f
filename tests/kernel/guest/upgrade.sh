#!/bin/bash
# upgrade.sh ADDR PORT NQN COUNT - the target is replaced by its own program COUNT times while fio verifies; the driver
# notices nothing.
ADDR=$1 PORT=$2 NQN=$3 COUNT=$4
. /guest/lib.sh
modprobe nvme-tcp

cntlids() { cat /sys/class/nvme/nvme*/cntlid; }
upgraded() {
	local at
	for ((at = 1; at <= COUNT; at++)); do
		ask upgrade || { echo "upgrade $at failed"; return 1; }
		sleep 0.3
	done
}
same_controller() { [ -n "$before" ] && [ "$(cntlids)" = "$before" ]; }

check "attach" attach || exit 1
before=$(cntlids)
fio_starts 4m
check "the target is replaced $COUNT times" upgraded
check "a program that fails is refused" ask broken
check "a volume that was added stays over an upgrade" ask changed
check "fio finds no wrong data" fio_is_verified
check "the controller has the same ID" same_controller
check "no connection was lost, and no I/O failed" connections_stay
check "detach" detach
exit 0
