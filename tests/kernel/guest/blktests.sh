#!/bin/bash
# blktests.sh ADDR PORT NQN VOLUME_UUID TEST... - run tests of blktests against a target outside.
#
# Needs blktests in /blktests.tar and the kernel's configuration in /boot/config. Prints a line for
# each test: `ok`, `not ok` with the difference to the expected output, or `skipped` with the reason.
export ADDR=$1 PORT=$2 NQN=$3 VOLUME_UUID=$4 HOST_UUID=0f01fb42-9f7f-4856-b0b3-51e60b8de349
shift 4
exec 8<&0 9>&1 0</dev/null    # for blktests-control.sh

[ ! -e /nvme-cli.tar ] || tar -x -f /nvme-cli.tar -C /
echo "# $(nvme version 2>&1 | head -n 1), Linux $(uname -r)"
# The versions of busybox lack options that blktests needs; the kernel calls /sbin/modprobe.
for tool in depmod modprobe modinfo insmod rmmod lsmod; do ln -sf kmod /usr/bin/$tool; done
ln -sf ../usr/bin/kmod /sbin/modprobe
ln -sf gawk /usr/bin/awk
ln -sf grep /usr/bin/zgrep    # the kernel's configuration is not compressed here
# blktests cannot parse the plus sign in Debian's release names.
printf '#!/bin/sh\nbusybox uname "$@" | tr + -\n' > /usr/bin/uname; chmod 755 /usr/bin/uname
hash -r
release=$(uname -r)
ln -s "$(busybox uname -r)" "/lib/modules/$release"
ln -s config "/boot/config-$release"
depmod -a 2>/dev/null    # it warns about the missing list of built-in modules
# The guest has no udev: devtmpfs creates the nodes, without delay.
printf '#!/bin/sh\nexit 0\n' > /usr/bin/udevadm; chmod 755 /usr/bin/udevadm
printf '#!/bin/sh\nexec "$@"\n' > /usr/bin/sudo; chmod 755 /usr/bin/sudo
mkdir -p /blktests /var/tmp /usr/share
mount -t tmpfs -o size=1g blktests /blktests
tar -x -f /blktests.tar -C /blktests
mkdir /blktests/tmp
mount --bind /blktests/tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup 2>/dev/null
modprobe nvme-tcp; modprobe loop
# Until the kernel has gathered entropy, `nvme connect` connects and then returns an error.
head -c 1 /dev/random > /dev/null
cd /blktests || exit 1
echo 'TMPDIR=/blktests/tmp' > config
export NVMET_TRTYPES=tcp NVMET_BLKDEV_TYPES=device NVME_IMG_SIZE=352M NVME_NUM_ITER=3 TIMEOUT=20
export NVME_TARGET_CONTROL=/guest/blktests-control.sh
# blktests changes keys during a test in the configfs of the kernel's target only.
cat >> tests/nvme/rc <<'E'
_set_nvmet_hostkey() { "$nvme_target_control" host-key "$2"; }
_set_nvmet_ctrlkey() { "$nvme_target_control" target-key "$2"; }
_set_nvmet_hash() { "$nvme_target_control" hash "$2"; }
_set_nvmet_dhgroup() { "$nvme_target_control" group "$2"; }
E

# Some tests use an existing device: the namespace is attached for them.
needs_device() { grep -q '^test_device()' "tests/$1"; }
attach() {
	local device
	nvme connect -t tcp -a "$ADDR" -s "$PORT" -n "$NQN" > /dev/null || return 1
	for _ in $(seq 100); do
		device=$(ls -d /dev/nvme*n1 2>/dev/null | head -n 1)
		[ -n "$device" ] && [ "$(blockdev --getsz "$device")" -gt 0 ] && break
		sleep 0.1
	done
	echo "TEST_DEVS=($device)" >> config
}
detach() { nvme disconnect -n "$NQN" > /dev/null; sed -i '/^TEST_DEVS/d' config; }

run_test() { # TEST: blktests prints the name and then the result, or indented reasons
	local log=/blktests/run.log bad
	! needs_device "$1" || attach || { echo "not ok $1: the namespace cannot be attached"; return; }
	timeout 600 ./check "$1" > "$log" 2>&1
	! needs_device "$1" || detach
	if grep -q '\[failed\]' "$log"; then
		echo "not ok $1"
		for bad in results/*/"$1".out.bad results/*/*/"$1".out.bad; do
			[ -e "$bad" ] && diff "tests/$1.out" "$bad" | head -n 20 | sed 's/^/    /'
		done
		tail -n 20 "$log" | sed 's/^/    /'
	elif grep -q '\[passed\]' "$log"; then
		echo "ok $1"
	elif grep -q '\[not run\]' "$log"; then
		echo "skipped $1: $(grep '^ ' "$log" | grep -v runtime | tr -s ' \n' ' ' | cut -c1-200)"
	else
		echo "not ok $1"
		tail -n 20 "$log" | sed 's/^/    /'
	fi
}
for test in "$@"; do run_test "$test"; done
