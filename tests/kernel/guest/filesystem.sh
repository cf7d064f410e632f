#!/bin/bash
# filesystem.sh ADDR PORT NQN - a file system on the volume survives a restart of the target by
# the driver.
ADDR=$1 PORT=$2 NQN=$3
. /guest/lib.sh
[ -z "${STANDIN-}" ] || { . /guest/kernel-target.sh; ask() { kernel_target_restart "$NQN"; }; }
modprobe nvme-tcp; modprobe ext4

sums() { (cd "$1" && find . -type f | sort | xargs sha256sum); }
makes() { mkfs.ext4 -q -F -b 4096 "$dev" && mount -t ext4 "$dev" /mnt; }
copies() {
	mkdir /mnt/tree && cp -a /lib/modules /usr/bin/nvme /etc /mnt/tree/ || return 1
	sync
	(cd / && mkdir /tmp/tree && cp -a /lib/modules /usr/bin/nvme /etc /tmp/tree/)
	sums /tmp/tree > /tmp/sums
	[ -s /tmp/sums ]
}
same_tree() { sums /mnt/tree > /tmp/found && cmp /tmp/sums /tmp/found; }
unmounts() { umount /mnt; }
is_clean() { fsck.ext4 -f -n "$dev"; }
remounts() { mount -t ext4 "$dev" /mnt; }
trims() { rm -r /mnt/tree/etc && sed -i '/ \.\/etc\//d' /tmp/sums && fstrim -v /mnt; }
reattaches() { detach && ask restart && attach -g -G; }

check "attach for a file system" attach || exit 1
check "mkfs.ext4 and mount" makes || exit 1
check "copy a tree" copies
check "unmount" unmounts
check "fsck" is_clean
check "reconnect after a restart of the target" reattaches || exit 1
check "mount again" remounts || exit 1
check "checksums after the restart" same_tree
check "fstrim" trims
check "checksums after fstrim" same_tree
check "unmount again" unmounts
check "fsck again" is_clean
check "detach" detach
exit 0
