#!/bin/bash
# tests/anywhere.sh [-n N] [CONDITION...] [-- ARGUMENT...] - `cargo test --workspace` on machines
# unlike this one, N times (1), under each of these conditions (default: all):
#
#   default-buffers   socket buffers of distributions: small at first, up to 32 MiB
#   small-buffers     socket buffers of at most 64 KiB
#   busy-core         one core, shared with two busy loops
#   ordinary-user     a user without privileges
#   few-descriptors   `ulimit -n 1024`
#
# ARGUMENTs replace `--workspace`, e.g. `-- -p isolane-engine --test streams`. Buffer limits are set
# in a private network namespace, so the machine does not change. The status is 1 if a condition
# failed; all conditions run.
set -u
cd "$(dirname "$0")/.." || exit 1
all=(default-buffers small-buffers busy-core ordinary-user few-descriptors)
times=1 conditions=() arguments=(--workspace)
usage() { sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2; }
while [ $# -gt 0 ]; do
	case $1 in
		-n) times=${2-}; [ "$times" -gt 0 ] 2> /dev/null || usage; shift;;
		--) shift; arguments=("$@"); break;;
		*) [[ " ${all[*]} " == *" $1 "* ]] || usage; conditions+=("$1");;
	esac
	shift
done
[ ${#conditions[@]} -gt 0 ] || conditions=("${all[@]}")

busy=() copy=
clean() {
	[ ${#busy[@]} = 0 ] || kill "${busy[@]}" 2> /dev/null
	[ -z "$copy" ] || rm -rf "$copy"
}
trap clean EXIT
trap 'exit 130' INT TERM

suite() { cargo test --no-fail-fast "${arguments[@]}"; }
export -f suite
export RUST_BACKTRACE=1

# with_buffers RMEM WMEM: in a new network namespace with loopback up. Root needs no user namespace,
# and in one, tests could not change to another user.
with_buffers() {
	local own=(unshare -n)
	[ "$(id -u)" = 0 ] || own=(unshare -rn)
	local up='ip link set lo up 2> /dev/null || busybox ip link set lo up || exit 1'
	local set='cd /proc/sys/net/ipv4 && echo "$1" > tcp_rmem && echo "$2" > tcp_wmem && cd "$OLDPWD" || exit 1; shift 2'
	"${own[@]}" bash -c "$up; $set; "'exec cargo test --no-fail-fast "$@"' anywhere "$1" "$2" "${arguments[@]}"
}

# One core, shared with two busy loops.
on_busy_core() {
	local status core
	core=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
	for _ in 1 2; do
		taskset -c "$core" bash -c 'while :; do :; done' &
		busy+=($!)
	done
	taskset -c "$core" cargo test --no-fail-fast "${arguments[@]}"
	status=$?
	kill "${busy[@]}"; wait "${busy[@]}" 2> /dev/null; busy=()
	return $status
}

# From a copy that the user `nobody` can read and write: root builds, `nobody` runs the tests.
as_ordinary_user() {
	[ "$(id -u)" = 0 ] || { suite; return; }
	if [ -z "$copy" ]; then
		copy=$(mktemp -d /tmp/isolane-anywhere.XXXXXX) || return 1
		git ls-files -z | xargs -0 cp --parents -t "$copy" || return 1
	fi
	local nobody=(setpriv --reuid=nobody --regid=nogroup --clear-groups --no-new-privs)
	local runner=CARGO_TARGET_$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER
	(cd "$copy" && export CARGO_TARGET_DIR=$copy/target TMPDIR=/tmp &&
		cargo test --no-run "${arguments[@]}" && cargo build -p isolane-capi && chown -R nobody:nogroup "$copy" && chmod 755 "$copy" &&
		env ISOLANE_CAPI_DIR="$copy/target/debug" HOME="$copy" CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}" RUSTUP_HOME="${RUSTUP_HOME:-$HOME/.rustup}" \
			"$runner=${nobody[*]}" cargo test --no-fail-fast "${arguments[@]}")
}

run() {
	case $1 in
		default-buffers) with_buffers '4096 131072 33554432' '4096 16384 4194304';;
		small-buffers) with_buffers '4096 16384 65536' '4096 16384 65536';;
		busy-core) on_busy_core;;
		ordinary-user) as_ordinary_user;;
		few-descriptors) (ulimit -n 1024 && suite);;
	esac
}

cargo test --no-run "${arguments[@]}" || exit 1
failed=0
for ((time = 1; time <= times; time++)); do
	for condition in "${conditions[@]}"; do
		begun=$SECONDS
		echo "== $condition, time $time of $times"
		if run "$condition"; then result=passed; else result=failed; failed=1; fi
		echo "== $condition, time $time of $times: $result after $((SECONDS - begun)) s"
	done
done
exit $failed
