#!/bin/bash
# explain.sh [SCENARIO...] - the faults of `cargo xtask explain` that need their own kernel, in guests
# with Linux 6.12: whether `isolane explain` names them.
#
#   11        a handler that takes 2 ms on the interrupt line of one of eight NVMe drives
#   12        1 % loss and 5 ms on the path to one of two hosts
#   12-quota  cpu.max of 50 % for the target
#   14        two volumes on one slow disk of four
#
# The clock of the guest counts instructions (-icount), so other work on this machine does not delay
# it, and a guest takes from half a minute to some minutes. $LOGS keeps the snapshot
# (explain-NAME.json) and the log of the check with the verdict (explain-NAME.asks).
# The closing line is `N passed, N failed`.
set -u
. "$(dirname "$0")/../lib.sh"

wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(11 12 12-quota 14)

on_ask() { # snapshot or verdict, SCENARIO, and the data
	local kind scenario data
	read -r kind scenario data <<< "$1"
	case $kind in
		snapshot) base64 -d <<< "$data" | gzip -d > "$logs/explain-$scenario.json";;
		verdict) python3 "$tests/kernel/verdict.py" "$scenario" <<< "$data";;
	esac
}

export GUEST_ACCEL=tcg    # no other counts instructions

# Eight drives on the four lines of q35, which depend on the slot. The drive in slot 4 has its line alone, except for
# the device in slot 8.
drives() {
	local slot number=0
	for slot in 4 5 6 7 9 a b d; do
		echo "-drive if=none,id=drive$number,driver=null-co,size=64M,read-zeroes=on"
		echo "-device nvme,drive=drive$number,serial=drive$number,addr=0x$slot"
		number=$((number + 1))
	done
	echo "-device edu,addr=0x8"
}

build_module() { # with the headers of the guest's kernel
	local cache=${GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/isolane-guest} release headers package
	"$tests/kernel/guest.sh" -B || return 1
	release=$(ls "$cache/k-6.12/root/lib/modules") || return 1
	headers=$cache/headers-$release
	if [ ! -d "$headers" ]; then
		mkdir -p "$work/headers"
		for package in "linux-headers-$release" "linux-headers-${release%-cloud-amd64}-common" "linux-kbuild-${release%-cloud-amd64}"; do
			(cd "$work" && apt-get download "$package") || return 1
		done
		for package in "$work"/*.deb; do dpkg -x "$package" "$work/headers" || return 1; done
		mv "$work/headers" "$headers"
	fi
	# The makefile of the package includes one by its path after an installation.
	sed -i "s,^include /usr/,include $headers/usr/," "$headers/usr/src/linux-headers-$release/Makefile"
	cp -r "$tests/kernel/slow-handler" "$work/module"
	make -C "$headers/usr/src/linux-headers-$release" M="$work/module" CC=gcc CONFIG_DEBUG_INFO_BTF_MODULES= modules
}

run() { # SCENARIO
	local options=(-q "-icount shift=1,sleep=off")
	case $1 in
		11)
			check "build a module for the guest" build_module || return
			options=(-c 3 -a pci=nomsi -q "${options[1]} $(echo $(drives))" -f "$work/module/slow_handler.ko:/guest/slow_handler.ko");;
		12) options+=(-b ip -b tc);;
	esac
	guest "explain-$1" 6.12 1200 "${options[@]}" -b "$isolane" -- explain.sh "$1"
}

for scenario in "${wanted[@]}"; do run "$scenario"; done 2>&1 | tee "$logs/explain.results" | sed -u 's,^,[explain] ,'
tally "$logs/explain.results"
