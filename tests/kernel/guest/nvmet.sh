#!/bin/bash
# nvmet.sh NQN - serve a memory-backed disk with the kernel's own target while the driver outside
# runs its checks.
. /guest/lib.sh
. /guest/kernel-target.sh

modprobe null_blk nr_devices=0
null_disk disk size=64
check "start the kernel's target" kernel_target_start 10.0.2.15 4420 "$1" "$(null_device disk)" || exit 1
check "checks of the driver" ask checks
exit 0
