#!/bin/bash
# standin.sh SCRIPT ARG... - run another guest script against the kernel's own nvmet-tcp instead of
# Isolane's target, to verify the script.
set -u
. /guest/kernel-target.sh
export ADDR=127.0.0.1 PORT=4420 NQN=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001
export STANDIN=1
modprobe null_blk nr_devices=0
null_disk standin size=64
kernel_target_start "$ADDR" "$PORT" "$NQN" "$(null_device standin)"
script=$1; shift
exec bash "/guest/$script" "$@"
