#!/bin/bash
# blktests-control.sh COMMAND... - target control of blktests (NVME_TARGET_CONTROL).
#
# The target runs outside of the guest and has one subsystem with one namespace, regardless of the
# setup of a test. blktests.sh, which runs in the same guest, exports the variables.
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
	setup*|cleanup*) ;;
	*) echo "unknown command: $*" >&2; exit 1;;
esac
