#!/bin/bash
# namespaces.sh ADDR PORT NQN - the driver adds, grows, replaces, protects, and removes a volume while fio verifies
# another one; sysfs shows each change, and the connections stay.
ADDR=$1 PORT=$2 NQN=$3
. /guest/lib.sh
modprobe nvme-tcp

attribute_is() { # NSID ATTRIBUTE VALUE: of the block device
	local device
	device=$(block_device "$1") && [ "$(cat "/sys/block/${device#/dev/}/$2")" = "$3" ]
}
second() { # [FIO OPTION...]: on the second namespace
	fio --name=second --filename="$(block_device 2)" --direct=1 --bs=64k --iodepth=8 --ioengine=libaio --size=16m \
		--rw=write --verify=crc32c --verify_fatal=1 "$@"
}
added() { ask add && wait_for 20 attribute_is 2 size $((64 << 11)) && second; }
grown() {
	ask grow && wait_for 20 attribute_is 2 size $((128 << 11)) || return
	second --offset=100m
}
replaced() { # by a copy with the same identity
	second --do_verify=0 && sync && ask replace && second --verify_only
}
protected() {
	ask protect && wait_for 20 attribute_is 2 ro 1 && ask unprotect && wait_for 20 attribute_is 2 ro 0
}
removed() { ask remove && wait_for 20 absent 2; }

check "attach to one namespace" attach || exit 1
fio_starts 4m
check "an added volume appears, and keeps data" added
check "a grown file has its new size, and keeps data there" grown
check "a copy with the same identity replaces the volume" replaced
check "write protection appears and ends" protected
check "a removed volume disappears" removed
check "the ID can be used again" added
check "fio on the other namespace finds no wrong data" fio_is_verified
check "no connection was lost, and no I/O failed" connections_stay
check "detach from changed namespaces" detach
exit 0
