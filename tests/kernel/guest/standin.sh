#!/bin/bash
# standin.sh SCRIPT ARG... - run another guest script with the kernel's own nvmet-tcp in
# the place of Isolane's target: it shows that the script itself is right.
set -u
. /guest/kernel-target.sh
export ADDR=127.0.0.1 PORT=4420 NQN=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001
export STANDIN=1
modprobe null_blk nr_devices=0
null_disk standin size=64
kernel_target_start "$ADDR" "$PORT" "$NQN" "$(null_device standin)"
script=$1; shift
exec bash "/guest/$script" "$@"
