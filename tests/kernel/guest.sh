#!/bin/bash
# guest.sh - run one script in a temporary Linux guest with the kernel's NVMe/TCP host (nvme-tcp)
# and target (nvmet-tcp), nvme-cli, fio, ext4, and null_blk.
#
#   guest.sh [options] SCRIPT [ARG...]
#     -k VER      Debian kernel: 6.12 (default) or 6.1
#     -c N        virtual CPUs (2)          -m SIZE   memory (1G)
#     -t SECS     time limit (120)
#     -p H:G      forward 127.0.0.1:H of this machine to guest port G (repeatable)
#     -f SRC:DST  put a file into the guest (repeatable)
#     -b PROG     put a program and its shared libraries into the guest (repeatable)
#     -a WORD     extra kernel command line word (repeatable)
#     -q 'ARGS'   extra qemu arguments (word-split)
#     -l FILE     keep the console log here (default: print its end if the guest dies)
#     -d FILE     start from a disk, which -q attaches: with -B, write the disk to FILE
#     -B          only build the images (for a cold cache)
#
# The script uses stdin and stdout of this program; its stderr goes to stdout. In the guest,
# 10.0.2.2 is 127.0.0.1 of this machine.
# Exit status: of the script; 124 = out of time; 125 = the guest died or cannot start.
#
# Needs the Debian packages of .ci/packages, and apt to download the kernel package.
# Environment: GUEST_CACHE (~/.cache/isolane-guest), GUEST_ACCEL (tcg|kvm, default by CPU
# flags), GUEST_TCG (single|multi; with multi a guest once died with "Oops: int3").
set -euo pipefail
unset LD_LIBRARY_PATH
cache=${GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/isolane-guest}
ver=6.12 cpus=2 mem=1G limit=120 klog= buildonly= qextra= disk=
fwd=() files=() progs=() kargs=()
while getopts k:c:m:t:p:f:b:a:q:l:d:B o; do case $o in
	k) ver=$OPTARG;; c) cpus=$OPTARG;; m) mem=$OPTARG;; t) limit=$OPTARG;;
	p) fwd+=("$OPTARG");; f) files+=("$OPTARG");; b) progs+=("$OPTARG");;
	a) kargs+=("$OPTARG");; q) qextra=$OPTARG;; l) klog=$OPTARG;; d) disk=$OPTARG;; B) buildonly=1;;
	*) exit 125;; esac; done
shift $((OPTIND - 1))
[ -n "$buildonly" ] || [ $# -ge 1 ] || { sed -n 2,23p "$0" >&2; exit 125; }
mkdir -p "$cache"
die() { echo "guest.sh: $*" >&2; exit 125; }

case $ver in
	6.12) meta=linux-image-6.12-cloud-amd64;;
	6.1)  meta=linux-image-cloud-amd64;;
	*) die "unknown kernel $ver: 6.12 or 6.1";;
esac

# ---- kernel package -> $cache/k-$ver/{vmlinux,root/lib/modules/...} -------------
kdir=$cache/k-$ver
unpack_kernel() { # VMLINUZ VMLINUX: QEMU starts an uncompressed kernel by PVH, so the guest decompresses nothing
	python3 - "$1" "$2" <<'E'
import struct, subprocess, sys
d = open(sys.argv[1], 'rb').read()
off, ln = struct.unpack_from('<II', d, 0x248)      # payload_offset/length of the x86 boot protocol
p = d[((d[0x1f1] or 4) + 1) * 512 + off:][:ln - 4]
for magic, cmd in ((b'\x28\xb5\x2f\xfd', ['zstd', '-dc']), (b'\x02\x21\x4c\x18', ['lz4', '-dc']),
                   (b'\x1f\x8b', ['gzip', '-dc']), (b'\xfd7zXZ', ['xz', '-dc', '--single-stream'])):
    if p.startswith(magic):
        out = subprocess.run(cmd, input=p, stdout=subprocess.PIPE).stdout
        break
else:
    sys.exit('unknown kernel compression')
assert out[:4] == b'\x7fELF'
open(sys.argv[2], 'wb').write(out)
E
}
build_kernel() {
	local w=$kdir.tmp pkg try
	rm -rf "$w"; mkdir -p "$w"
	pkg=$(apt-cache depends "$meta" | awk '/Depends: linux-image/{print $2; exit}')
	[ -n "$pkg" ] || die "no package $meta: run apt-get update on Debian 12"
	for try in 1 2 3; do
		(cd "$w" && apt-get download "$pkg" > download.log 2>&1) && break
		[ "$try" != 3 ] || { cat "$w/download.log" >&2; die "cannot download $pkg"; }
		sleep 3
	done
	dpkg -x "$w"/*.deb "$w/root"; rm "$w"/*.deb
	unpack_kernel "$w"/root/boot/vmlinuz-* "$w/vmlinux" || die "cannot unpack the kernel of $pkg"
	rm -rf "$kdir"; mv "$w" "$kdir"
}
exec 8> "$cache/lock"; flock 8    # one builder at a time
[ -s "$kdir/vmlinux" ] || build_kernel
kv=$(ls "$kdir/root/lib/modules")

# ---- base initramfs: busybox, bash, nvme-cli, fio, modules ----------------------
put_prog() { # PROG ROOT: program, its shared libraries and its loader
	local f; f=$(readlink -f "$(type -P "$1")") && [ -n "$f" ] || die "no program $1"
	install -D "$f" "$2/usr/bin/$(basename "$1")"
	ldd "$f" 2>/dev/null | sed -n 's,^[^/]*\(/[^ ]*\) (0x.*,\1,p' | while read -r l; do
		[ -e "$2$l" ] || install -D "$l" "$2$l"; done || true
}
wanted="nvme-core nvme-fabrics nvme-tcp nvme-keyring nvme-auth nvmet nvmet-tcp nvme-loop
 configfs null_blk brd loop virtio_blk virtio_net virtio_pci virtio_console
 virtio-rng qemu_fw_cfg ext4 xfs tls dm-mod dm-flakey sch_netem veth tcp_diag crc32c_generic crc32c-intel
 crct10dif_generic crct10dif-pclmul crc64_rocksoft_generic"
programs="bash nvme fio mkfs.ext4 fsck.ext4"
guest_init() { cat <<'E'
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
ln -s /proc/self/fd /dev/fd; ln -s fd/0 /dev/stdin; ln -s fd/1 /dev/stdout; ln -s fd/2 /dev/stderr
mkdir -p /dev/shm /dev/pts; mount -t tmpfs tmp /tmp; mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run; mount -t devpts pts /dev/pts; mount -t debugfs dbg /sys/kernel/debug 2>/dev/null
ln -s /proc/mounts /etc/mtab
for m in virtio_pci virtio_console virtio_net crc32c_generic configfs; do modprobe $m 2>/dev/null; done
mount -t configfs cfg /sys/kernel/config
ifconfig lo 127.0.0.1 up
if [ -e /sys/class/net/eth0 ]; then ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up; route add default gw 10.0.2.2
	i=0; while [ "$(cat /sys/class/net/eth0/carrier)" != 1 ] && [ $i -lt 50 ]; do sleep 0.1; i=$((i+1)); done; fi
port() { for p in /sys/class/virtio-ports/*; do [ "$(cat $p/name 2>/dev/null)" = $1 ] && echo /dev/${p##*/}; done; }
i=0; while [ -z "$(port rc)" ] && [ $i -lt 50 ]; do sleep 0.1; i=$((i+1)); done
out=$(port out) in=$(port in) rc=$(port rc)
dmesg -n 8    # all messages, also of programs that crash
echo "guest: userspace at $(cut -d' ' -f1 /proc/uptime) s" > /dev/kmsg
cd /root
/cmd.run < $in > $out 2>&1
echo $? > $rc
sync; poweroff -f
E
}
put_modules() { # ROOT: the wanted modules and their dependencies, decompressed, then depmod
	local r=$1 src=$kdir/root/lib/modules/$kv list=$cache/modlist.$ver todo=$wanted dep m p out
	mkdir -p "$r/lib/modules/$kv"
	cp "$src"/modules.builtin "$src"/modules.order "$r/lib/modules/$kv/" 2>/dev/null || true
	(cd "$src" && find . -name '*.ko*') > "$list"
	while [ -n "$todo" ]; do
		dep=
		for m in $todo; do
			p=$(grep -E "/$(echo "$m" | sed 's/[-_]/[-_]/g')\.ko(\.xz)?\$" "$list" | head -1) || continue
			out=$r/lib/modules/$kv/${p%.xz}
			[ -e "$out" ] && continue
			mkdir -p "$(dirname "$out")"
			case $p in *.xz) xz -dc "$src/$p" > "$out";; *) cp "$src/$p" "$out";; esac
			dep+=" $(tr '\0' '\n' < "$out" | sed -n 's/^depends=//p' | tr ',' ' ')"
		done
		todo=$(echo $dep)
	done
	busybox depmod -b "$r" "$kv"
}
build_base() {
	local r=$cache/base.tmp m
	rm -rf "$r" "$cache"/base-"$ver"-*; mkdir -p "$r"/{bin,sbin,dev,proc,sys,tmp,run,root,etc/nvme,usr/bin,usr/sbin,mnt}
	cp /bin/busybox "$r/bin/"
	for m in $(busybox --list); do [ "$m" = busybox ] || ln -s busybox "$r/bin/$m"; done
	ln -s ../bin/busybox "$r/sbin/modprobe"
	rm -f "$r/bin/bash"; for m in $programs; do put_prog "$m" "$r"; done
	ln -s ../usr/bin/bash "$r/bin/bash"
	echo 'root:x:0:0:root:/root:/bin/sh' > "$r/etc/passwd"; echo 'root:x:0:' > "$r/etc/group"
	echo '127.0.0.1 localhost' > "$r/etc/hosts"
	echo 'nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555' > "$r/etc/nvme/hostnqn"
	echo '11111111-2222-3333-4444-555555555555' > "$r/etc/nvme/hostid"
	put_modules "$r"
	guest_init > "$r/init"; chmod 755 "$r/init"
	(cd "$r" && find . -print0 | cpio -0 -o -H newc -R 0:0 --quiet) > "$base.tmp"
	rm -rf "$r"; mv "$base.tmp" "$base"
}
# The name of the image contains the hash of this file, so another clone finds it.
base=$cache/base-$ver-$(sha256sum < "$0" | cut -c1-12).cpio
[ -s "$base" ] || build_base
exec 8>&-
[ -z "$buildonly" ] || [ -n "$disk" ] || exit 0

# ---- this run: script, extra files, extra programs ------------------------------
w=$(mktemp -d "${TMPDIR:-/tmp}/guest.XXXXXX"); qpid= cpid=
cleanup() { [ -z "$qpid" ] || kill "$qpid" 2>/dev/null || true; rm -rf "$w"; }
trap cleanup EXIT; trap 'exit 124' INT TERM HUP
klog=${klog:-$w/kernel.log}; : > "$klog"
mkdir -p "$w/r"
install -m 755 "$1" "$w/r/cmd"; shift
{ echo '#!/bin/sh'; printf 'exec /cmd'; for a in "$@"; do printf " '%s'" "${a//\'/\'\\\'\'}"; done; echo; } > "$w/r/cmd.run"
chmod 755 "$w/r/cmd.run"
for f in ${files[@]+"${files[@]}"}; do install -D "${f%%:*}" "$w/r/${f#*:}"; done
for f in ${progs[@]+"${progs[@]}"}; do put_prog "$f" "$w/r"; done
{ cat "$base"; (cd "$w/r" && find . -print0 | cpio -0 -o -H newc -R 0:0 --quiet); } > "$w/initrd"
words="console=ttyS0 quiet loglevel=6 panic=-1 reboot=t mitigations=off nokaslr no_timer_check random.trust_cpu=on ${kargs[*]-}"
if [ -n "$buildonly" ]; then # the disk: a FAT file system that the BIOS starts
	size=$(($(stat -Lc %s "$w/initrd" "$kdir"/root/boot/vmlinuz-* | paste -sd+) + (16 << 20)))
	truncate -s "$(((size >> 20) + 1))M" "$disk"
	mkfs.vfat -F 32 "$disk" > /dev/null
	printf 'DEFAULT linux\nLABEL linux\n  LINUX vmlinuz\n  INITRD initrd\n  APPEND %s\n' "$words" > "$w/syslinux.cfg"
	mcopy -i "$disk" "$kdir"/root/boot/vmlinuz-* ::vmlinuz
	mcopy -i "$disk" "$w/initrd" "$w/syslinux.cfg" ::
	syslinux --install "$disk"
	exit 0
fi
start=(-kernel "$kdir/vmlinux" -initrd "$w/initrd" -append "$words")
[ -z "$disk" ] || start=()
mkfifo "$w/out"

accel=${GUEST_ACCEL:-}
if [ -z "$accel" ]; then # without vmx or svm, /dev/kvm cannot run a distribution kernel
	if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then accel=kvm; else accel=tcg; fi
fi
case $accel in kvm) acc=(-accel kvm -cpu host);; *) acc=(-accel "tcg,thread=${GUEST_TCG:-single}" -cpu Nehalem);; esac
net=user,id=n0
for f in ${fwd[@]+"${fwd[@]}"}; do net+=",hostfwd=tcp:127.0.0.1:${f%%:*}-10.0.2.15:${f#*:}"; done

cat "$w/out" & cpid=$!
exec 7<&0
# shellcheck disable=SC2086
timeout -k 5 "$limit" qemu-system-x86_64 -machine q35,usb=off "${acc[@]}" -smp "$cpus" -m "$mem" \
	-nodefaults -no-user-config -display none -no-reboot ${start[@]+"${start[@]}"} \
	-serial "file:$klog" \
	-netdev "$net" -device virtio-net-pci,netdev=n0,romfile= \
	-device virtio-serial-pci \
	-chardev stdio,id=in,signal=off -device virtserialport,chardev=in,name=in \
	-chardev "file,id=out,path=$w/out" -device virtserialport,chardev=out,name=out \
	-chardev "file,id=rc,path=$w/rc" -device virtserialport,chardev=rc,name=rc \
	-device virtio-rng-pci $qextra <&7 2> "$w/err" &
qpid=$!
st=0; wait "$qpid" || st=$?; qpid=
: <> "$w/out"    # unblocks the reader if QEMU failed before it opened the FIFO
wait "$cpid" 2>/dev/null || true
grep -v 'ui-ui-\|^$' "$w/err" >&2 || true
[ -s "$w/rc" ] && exit "$(tr -dc 0-9 < "$w/rc")"
[ "$st" = 124 ] || [ "$st" = 137 ] && exit 124
grep -aE "Oops|BUG:|Kernel panic|RIP:" "$klog" >&2 || tail -5 "$klog" >&2; exit 125
