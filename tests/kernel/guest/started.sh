#!/bin/bash
# started.sh - a guest that started from the disk /dev/vda: the disk holds the kernel that runs.
. /guest/lib.sh
modprobe virtio_blk
has_boot_disk() {
	wait_for 30 [ -b /dev/vda ] && head -c 512 /dev/vda | grep -q SYSLINUX && grep -q BOOT_IMAGE=vmlinuz /proc/cmdline
}
check "the guest runs the kernel of the disk" has_boot_disk
