#!/bin/bash
# package.sh DEB - the Debian package: programs with its libraries, unpacked, and the target in a guest with systemd.
# Needs lintian, mmdebstrap, the packages of .ci/packages, and a Debian mirror the first time.
# Environment: GUEST_CACHE (~/.cache/isolane-guest), DEBIAN_MIRROR (http://deb.debian.org/debian).
set -u
. "$(dirname "$0")/../lib.sh"
package=${1:?the package}
cache=${GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/isolane-guest}
system=$cache/bookworm-systemd.tar
# The kernel starts it; everything else is a Debian system.
unit='[Unit]
Description=Checks
[Service]
ExecStart=/bin/bash -c "/bin/bash /package.sh > /dev/ttyS0 2>&1"
ExecStopPost=/bin/systemctl --force --force poweroff
[Install]
WantedBy=multi-user.target'

with_system() { # writes the archive of the system once
	[ -s "$system" ] && return
	mmdebstrap --format=tar --variant=minbase --include=systemd-sysv,dbus bookworm "$system.new" \
		"${DEBIAN_MIRROR:-http://deb.debian.org/debian}" && mv "$system.new" "$system"
}
newer() { # the same files with a higher version
	dpkg-deb -R "$package" "$work/newer" && sed -i 's/^Version: .*/&.1/' "$work/newer/DEBIAN/control" &&
		dpkg-deb -Znone -b "$work/newer" "$work/root/newer.deb"
}
build() {
	mkdir "$work/root" && tar -C "$work/root" -xf "$system" --exclude='./dev/*' &&
		cp "$package" "$work/root/package.deb" && newer &&
		cp "$tests/kernel/guest/package.sh" "$tests/checks.sh" "$work/root/" &&
		echo "$unit" > "$work/root/etc/systemd/system/checks.service" &&
		ln -s ../checks.service "$work/root/etc/systemd/system/multi-user.target.wants/" &&
		ln -s /dev/null "$work/root/etc/systemd/system/serial-getty@ttyS0.service" &&
		ln -sf lib/systemd/systemd "$work/root/init" &&
		(cd "$work/root" && find . | cpio --quiet -o -H newc > "$work/system.cpio")
}
# Without vmx or svm, /dev/kvm cannot run the kernel of a distribution.
accelerator() { [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo && echo kvm || echo tcg,thread=single; }
run() {
	timeout -k 5 600 qemu-system-x86_64 -machine q35,usb=off -accel "$(accelerator)" -cpu max -smp 2 -m 3G \
		-nodefaults -no-user-config -display none -no-reboot -serial stdio -kernel "$cache/k-6.12/vmlinux" \
		-initrd "$work/system.cpio" -append "console=ttyS0 quiet panic=-1 systemd.show_status=false" < /dev/null |
		tr -d '\r' | tee "$logs/package.kernel" | grep -aE '^((not )?ok |    )' | tee -a "$logs/package.results"
}

unpack() { dpkg-deb -x "$package" "$work/unpacked"; }
unpacked=$work/unpacked/usr
names_libraries() { # the directory that `verbs env` also names
	[ "$("$unpacked/bin/isolane" verbs libs)" -ef "$unpacked/lib/isolane/isolane-verbs" ] &&
		(eval "$("$unpacked/bin/isolane" verbs env)" && [ "${LD_LIBRARY_PATH%%:*}" -ef "$unpacked/lib/isolane/isolane-verbs" ] && ibv_devices | grep isolane)
}
pings() {
	local port server
	port=$(free_port)
	timeout -k 5 60 "$unpacked/bin/isolane" verbs run -- rping -s -a 127.0.0.1 -p "$port" -C 20 & server=$!
	wait_for 30 "$unpacked/bin/isolane" verbs run -- timeout 20 rping -c -a 127.0.0.1 -p "$port" -C 20 -V || return 1
	wait $server
}
offers_provider() {
	FI_PROVIDER_PATH=$unpacked/lib/isolane/libfabric fi_info -p isolane -t FI_EP_MSG
}
lints() { lintian --fail-on error,warning "$package"; }

{
	check "the package unpacks" unpack
	check "the program finds the libraries of the package" names_libraries
	check "rping runs with the libraries of the package" pings
	check "libfabric finds the provider of the package" offers_provider
} | tee "$logs/package.unpacked"
"$tests/kernel/guest.sh" -B -k 6.12 || exit 1
check "a system with systemd" with_system || exit 1
check "a guest with the packages" build || exit 1
cp "$logs/package.unpacked" "$logs/package.results"
run
check "all checks ran" [ "$(grep -c 'ok ' "$logs/package.results")" = 16 ] | tee -a "$logs/package.results"
check "lintian has no warning" lints | tee -a "$logs/package.results"
tally "$logs/package.results"
