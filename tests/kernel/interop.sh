#!/bin/bash
# interop.sh [--long] [KERNEL/SUITE...] - Isolane and Linux kernels in guests, as host and target.
#
# Suites: meet (first commands), verify (fio), filesystem, restart (kill -9 under fio), namespaces
# (volumes that come, grow, and go under fio), access (masks, ports, and discovery change under
# fio), subsystems (many at once, volumes mapped to other namespaces, and fewer queues, under fio),
# upgrade (the target is replaced under fio), nvmet (our host, the kernel's target), power (a target
# on a disk that loses its cache), disks (a target on a disk that hangs, fails, and goes away), auth
# (keys, both directions), keys (they change while a host is connected), tools (meet and access with a
# newer nvme-cli), stalled (ext4 on a volume that stops for minutes). The default is every suite on
# both kernels, but auth, keys, subsystems, and upgrade on 6.12 only, and stalled and tools with --long
# only; the kernels run in parallel. fio runs pairwise combinations, with --long the full product. Logs are
# kept in $LOGS. The closing line is `N passed, N failed`.
set -u
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/suites.sh"

long=
[ "${1-}" = --long ] && { long=1; shift; }
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(6.12/meet 6.12/verify 6.12/filesystem 6.12/restart 6.12/namespaces 6.12/access 6.12/subsystems
	6.12/upgrade 6.12/power 6.12/disks 6.12/auth 6.12/keys 6.1/meet 6.1/verify 6.1/filesystem 6.1/restart 6.1/namespaces 6.1/access 6.1/disks 6.1/nvmet
	6.12/nvmet ${long:+6.1/subsystems 6.1/upgrade 6.12/tools 6.12/stalled 6.1/stalled})

run_suites() { # KERNEL: in sequence, each in its own shell
	local suite
	for suite in "${wanted[@]}"; do
		[ "${suite%/*}" = "$1" ] || continue
		(
			work=$work/${suite/\//-} check_log=$work/${suite/\//-}.check
			mkdir -p "$work"; trap finish EXIT
			kernel=$1; "suite_${suite#*/}"
		) 2>&1 | tee "$logs/${suite/\//-}.results" | sed -u "s,^,[$suite] ,"
	done
}

for kernel in 6.12 6.1; do "$tests/kernel/guest.sh" -B -k "$kernel" || exit 1; done
rm -f "$logs"/[0-9]*.results
run_suites 6.12 & run_suites 6.1 &
wait
tally "$logs"/[0-9]*.results
