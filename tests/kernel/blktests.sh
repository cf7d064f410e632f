#!/bin/bash
# blktests.sh [BLKTESTS_DIR] [TEST...] - blktests' nvme group in a guest with Linux 6.12, against
# Isolane's target outside. The guest has the nvme-cli of Debian sid if it can be downloaded.
#
# BLKTESTS_DIR is a checkout; without it, the script skips with status 0. docs/INTEROP.md lists the
# tests that do not apply, with reasons. Needs the packages of .ci/packages and
# .ci/packages-blktests. Takes about 9 minutes without KVM.
# The closing line is `N passed, N failed`.
set -u
. "$(dirname "$0")/../lib.sh"

directory=${1:-${BLKTESTS_DIR-}}
skip() { echo "skipped: $1"; exit 0; }
[ -n "$directory" ] || skip "no BLKTESTS_DIR: check blktests out and name its directory"
[ -x "$directory/check" ] || skip "$directory is not a checkout of blktests"
wanted=("${@:2}")
[ ${#wanted[@]} -gt 0 ] || wanted=(nvme/{003,004,005,006,008,010,012,014,018,019,021,022,023,025,026,027,028,029,040,041,042,043,044,045,047,049,053,067})

programs=(gawk jq bc kmod findmnt lsblk mkfs.xfs xfs_io timeout xargs sed grep stat tr sort find getopt dmesg truncate
	tar wc cut head tail date mktemp readlink realpath basename dirname seq id tee md5sum dd cmp diff ps uuidgen
	losetup blockdev mount umount fallocate strings column sleep cat ls cp mv rm ln mkdir chmod touch env nproc comm
	uniq paste od hexdump logger flock getconf df)
put=() missing=()
for program in "${programs[@]}"; do
	if type -P "$program" > /dev/null; then put+=(-b "$program"); else missing+=("$program"); fi
done
[ ${#missing[@]} = 0 ] || skip "programs are missing: ${missing[*]}"

build() { # in a copy of the checkout
	mkdir "$work/blktests" && (cd "$directory" && tar -c --exclude=.git --exclude=results .) | tar -x -C "$work/blktests" &&
		make -C "$work/blktests" && tar -c -f "$work/blktests.tar" -C "$work/blktests" .
}
uuid=91fdba0d-f87b-4c25-b80f-db7be1418b9e
host=nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349   # of guest/blktests.sh

# The keys and choices of the target: by default no keys, all hash functions, and the group of the kernel's target.
host_key=- target_key=- hash=- group=null
configure() { # PORT: writes the configuration file
	local server=('mode = "sleep"' "control-socket = \"$work/control.sock\"" 'auth-within = "10min"' "auth-groups = [\"$group\"]")
	local keys=()
	[ "$hash" = - ] || server+=("auth-hashes = [\"$hash\"]")
	[ "$host_key" = - ] || keys+=("auth-key = \"file:$work/host.key\"")
	[ "$target_key" = - ] || keys+=("auth-target-key = \"file:$work/target.key\"")
	(umask 077; echo "$host_key" > "$work/host.key"; echo "$target_key" > "$work/target.key")
	printf '%s\n' '[server]' "${server[@]}" "advertise = [\"10.0.2.2:$1\"]" \
		'[[port]]' 'name = "guest"' "listen = \"127.0.0.1:$1\"" \
		'[[host]]' 'name = "linux"' "nqn = \"$host\"" "${keys[@]}" \
		'[[subsystem]]' "nqn = \"$nqn\"" 'ports = ["guest"]' 'hosts = "any"' \
		'[[subsystem.namespace]]' 'nsid = 1' "volume = \"$work/disk,size=352M,uuid=$uuid\"" > "$work/blktests.toml"
}
start() { configure "$port" && start_target_with blktests --config "$work/blktests.toml"; }
apply() { configure "$port" && "$isolane" config apply --socket "$work/control.sock" "$work/blktests.toml"; }
restart() { end_target blktests TERM && start; }   # for choices that no running target takes

on_request() { # WORD...
	case $1 in
		setup)
			host_key=$2 target_key=$3
			if [ "$hash$group" = -null ]; then apply; else hash=- group=null; restart; fi;;
		host-key) host_key=$2; apply;;
		target-key) target_key=$2; apply;;
		hash) hash=$2; restart;;
		group) group=$2; restart;;
		*) echo "unknown request: $*"; return 1;;
	esac
}
# shellcheck disable=SC2086
on_ask() { echo "$1"; on_request $1; }

suite() {
	local port config tools; port=$(free_port)
	check "build blktests" build || return
	check "serve for blktests" start || return
	# Adds its shared libraries as well.
	put+=(-b "$work/blktests/src/nvme-passthru-admin-uring")
	check "build the guest" "$tests/kernel/guest.sh" -B || return
	tools=$("$tests/kernel/nvme-cli.sh") && put+=(-f "$tools:/nvme-cli.tar")
	config=$(echo "${GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/isolane-guest}"/k-6.12/root/boot/config-*)
	guest blktests 6.12 $((300 + 90 * ${#wanted[@]})) -m 3G -f "$work/blktests.tar:/blktests.tar" -f "$config:/boot/config" "${put[@]}" \
		-- blktests.sh 10.0.2.2 "$port" "$nqn" "$uuid" "${wanted[@]}"
	check "the target of blktests ends with status 0" end_target blktests TERM
}
(trap end_targets EXIT; suite) 2>&1 | tee "$logs/blktests.results" | sed -u 's,^,[blktests] ,'
tally "$logs/blktests.results"
