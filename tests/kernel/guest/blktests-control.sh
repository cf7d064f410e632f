#!/bin/bash
# blktests-control.sh COMMAND... - target control of blktests (NVME_TARGET_CONTROL).
#
# The target runs outside of the guest and has one subsystem with one namespace. The setup of a test
# decides only with which keys, hash function, and group its host authenticates: the driver outside
# changes them. blktests.sh, which runs in the same guest, exports the variables, and opened
# descriptors 8 and 9.
ask() { # WORD...: sends a request to the driver outside and waits for the response
	local answer
	echo "@$*" >&9
	read -r answer <&8
	[ "$answer" = "done" ] || { echo "the driver failed: $answer" >&2; exit 1; }
}
setup() { # OPTION...: blktests spells --ctrlkey without its l
	local host=- target=-
	while [ $# -gt 0 ]; do
		case $1 in
			--hostkey) host=$2;;
			--ctrkey | --ctrlkey) target=$2;;
		esac
		shift 2
	done
	ask setup "$host" "$target"
}
case "$1 ${2-}" in
	"config --show-blkdev-type") echo device;;
	"config --show-trtype") echo tcp;;
	"config --show-hostnqn") echo "nqn.2014-08.org.nvmexpress:uuid:$HOST_UUID";;
	"config --show-hostid") echo "$HOST_UUID";;
	"config --show-host-traddr") echo 10.0.2.15;;
	"config --show-traddr") echo "$ADDR";;
	"config --show-trsvid") echo "$PORT";;
	"config --show-subsys-uuid") echo "$VOLUME_UUID";;
	"config --show-subsysnqn") echo "$NQN";;
	setup*) setup "${@:2}";;
	cleanup*) ask setup - -;;
	host-key* | target-key* | group*) ask "$1" "$2";;
	hash*) hash=${2#hmac(}; ask hash "${hash%)}";;
	*) echo "unknown command: $*" >&2; exit 1;;
esac
