#!/bin/bash
# ibverbs.sh - run unmodified RDMA programs over the preload library, and check its interface.
#
# Needs target/release/isolane, libisolane_ibverbs.so, and libisolane_ibverbs.a, and the packages of .ci/packages. Each server listens on
# loopback and ends with its client.
set -u
. "$(dirname "$0")/checks.sh"
tests=$(cd "$(dirname "$0")" && pwd)
isolane=${ISOLANE_BIN:-$tests/../target/release/isolane}
libraries=$("$isolane" verbs libs) || exit 1
layout=$tests/../crates/isolane-ibverbs/src/abi/layout.txt
work=$(mktemp -d "${TMPDIR:-/tmp}/ibverbs.XXXXXX")
trap 'rm -rf "$check_log" "$work"' EXIT

verbs() { timeout -k 5 60 "$isolane" verbs run -- "$@"; }
device=$("$isolane" verbs devices --json | python3 -c '
import json, sys
print(next(row["device"] for row in json.load(sys.stdin) if row["address"] == "127.0.0.1"))')
is_listening() { # PORT
	awk -v port="$(printf ':%04X' "$1")" '$4 == "0A" && index($2, port) { found = 1 } END { exit !found }' /proc/net/tcp /proc/net/tcp6
}

is_listening_or_ended() { # PORT PID
	is_listening "$1" || ! kill -0 "$2"
}

pair() { # PROGRAM OPTION...: a server and a client, which both succeed
	local port server status
	port=$(free_port)
	verbs "$@" -p "$port" > "$work/server" 2>&1 & server=$!
	wait_for 30 is_listening_or_ended "$port" $server
	verbs "$@" -p "$port" 127.0.0.1; status=$?
	wait $server && [ $status = 0 ] && return 0
	echo "client: status $status; server:"; cat "$work/server"
	return 1
}
pingpong() { pair "ibv_$1_pingpong" -d "$device" -g 0 -n 200 "${@:2}"; }
perftest() { pair "$1" -d "$device" -x 0 -F -n 200 "${@:2}"; }

keyed() { # SERVER-KEY CLIENT-KEY TEXT: the client fails, and one of both ends prints the text
	local port server status
	port=$(free_port)
	ISOLANE_VERBS_KEY=$1 verbs ibv_rc_pingpong -d "$device" -g 0 -n 200 -p "$port" > "$work/server" 2>&1 & server=$!
	wait_for 30 is_listening_or_ended "$port" $server
	ISOLANE_VERBS_KEY=$2 verbs ibv_rc_pingpong -d "$device" -g 0 -n 200 -p "$port" 127.0.0.1 > "$work/client" 2>&1; status=$?
	pkill -P $server; wait $server
	cat "$work/client" "$work/server"
	# 124: its time is over.
	[ $status != 0 ] && [ $status != 124 ] && grep -qE "Failed status transport|Couldn't get context" "$work/client" &&
		grep -q "$3" "$work/client" "$work/server"
}
same_key() { ISOLANE_VERBS_KEY=$work/key pingpong rc; }
records_stages() { # of a program that runs, at the path in ISOLANE_CONTROL
	local port server client status
	port=$(free_port)
	verbs ibv_rc_pingpong -d "$device" -g 0 -n 100000000 -p "$port" > "$work/server" 2>&1 & server=$!
	wait_for 30 is_listening_or_ended "$port" $server
	ISOLANE_CONTROL=$work/control verbs ibv_rc_pingpong -d "$device" -g 0 -n 100000000 -p "$port" 127.0.0.1 > "$work/client" 2>&1 & client=$!
	wait_for 30 explains; status=$?
	pkill -P $client; pkill -P $server; wait $client $server
	cat "$work/explained" "$work/client"
	return $status
}
explains() {
	"$isolane" explain "$work/control" > "$work/explained" 2>&1 &&
		grep ' operations on 1 queue pair: ' "$work/explained" && grep ', stage ' "$work/explained"
}
keeps_variables() { # without the options
	ISOLANE_VERBS_LANES=9 verbs ibv_devinfo -d "$device" > "$work/lanes" 2>&1
	grep -q 'ISOLANE_VERBS_LANES=9: write 1 to 8' "$work/lanes" || { cat "$work/lanes"; return 1; }
	ISOLANE_VERBS_PROGRESS=thread:9999 verbs true > "$work/progress" 2>&1 && return 1
	grep -q '9999' "$work/progress" || { cat "$work/progress"; return 1; }
	ISOLANE_VERBS_LANES=9 timeout -k 5 60 "$isolane" verbs run --lanes 2 -- ibv_devinfo -d "$device" | grep PORT_ACTIVE
}
names_missing_port() { # of a second process
	local port only server status
	port=$(free_port) only=$(free_port)
	ISOLANE_VERBS_PORTS=$only-$only verbs ibv_rc_pingpong -d "$device" -g 0 -p "$port" > "$work/server" 2>&1 & server=$!
	wait_for 30 is_listening_or_ended "$port" $server
	ISOLANE_VERBS_PORTS=$only-$only verbs ibv_rc_pingpong -d "$device" -g 0 -p "$port" 127.0.0.1 > "$work/client" 2>&1; status=$?
	pkill -P $server; wait $server
	cat "$work/client" "$work/server"
	[ $status != 0 ] && grep -q "no free port in $only-$only at 127.0.0.1" "$work/client"
}
headers_agree() { # the layout that a unit test compares with the structures
	{
		echo '#include <rdma/rdma_cma.h>'
		echo '#include <infiniband/sa.h>'
		echo '#include <stddef.h>'
		grep -v '^#' "$layout" | while IFS='|' read -r _ name value; do
			set -- $name
			case $3 in
				-) echo "_Static_assert(sizeof($1 $2) == $value, \"$1 $2\");" ;;
				*) echo "_Static_assert(offsetof($1 $2, $3) == $value, \"$1 $2 $3\");" ;;
			esac
		done
	} > "$work/layout.c"
	[ "$(wc -l < "$work/layout.c")" -gt 300 ] && cc -c -o "$work/layout.o" "$work/layout.c"
}
symbols() { # LIBRARY: its versioned symbols; the default version of each has @@
	readelf -W --dyn-syms "$1" | awk '$7 != "UND" && $8 ~ /.@/ { print $8 }' | sort
}
installed() { # LIBRARY
	ldconfig -p | awk -v name="$1" '$1 == name { print $NF; exit }'
}
has_versions_of() { # DIRECTORY: of the libraries of rdma-core
	local all public missing more
	symbols "$libraries/libibverbs.so.1" > "$work/own"
	all=$(for name in libibverbs librdmacm; do symbols "$1/$name.so.1"; done)
	public=$(echo "$all" | grep -v PRIVATE | sort)
	missing=$(comm -23 <(echo "$all" | sed 's/@@/@/' | sort) <(sed 's/@@/@/' "$work/own" | sort)
		comm -23 <(echo "$public" | grep @@) "$work/own")
	# Of the versions that they have, the libraries have no other symbol.
	more=$(comm -13 <(echo "$public" | sed 's/@@/@/' | sort) \
		<(sed 's/@@/@/' "$work/own" | grep -wFf <(echo "$public" | sed 's/.*@/@/' | sort -u) | sort))
	[ "$(echo "$all" | wc -l)" -gt 200 ] && [ -z "$missing$more" ] && return 0
	echo "missing: $missing; more: $more"
	return 1
}
has_versions_of_installed_libraries() { has_versions_of "$(dirname "$(installed libibverbs.so.1)")"; }
has_imports_of_providers() { # DIRECTORY: of all drivers
	local imported
	imported=$(readelf -W --dyn-syms "$1"/libmlx5.so.1 "$1"/libefa.so.1 "$1"/libibverbs/*-rdmav*.so | awk '$7 == "UND" && $8 ~ /@IBVERBS_PRIVATE/ { print $8 }' | sort -u)
	symbols "$libraries/libibverbs.so.1" > "$work/own"
	[ "$(echo "$imported" | wc -l)" -gt 60 ] && [ -z "$(comm -23 <(echo "$imported") "$work/own")" ] && return 0
	comm -23 <(echo "$imported") "$work/own"
	return 1
}
has_imports_of_installed_providers() { has_imports_of_providers "$(dirname "$(installed libmlx5.so.1)")"; }
exports_nothing_else() { # besides versions, and functions of the C library with a path
	local more
	more=$(nm -D --defined-only --without-symbol-versions "$libraries/libibverbs.so.1" | awk '$2 == "T" { print $3 }' | grep -vE '^(_?ibv_|rdma_|r[a-z]+|mbps_|mult_|_?_?verbs_|execute_ioctl|__ioctl)' |
		grep -vxE '(__)?(f|l|x|lx)?(open|open_2|openat|openat_2|fopen|stat|fstatat|xstat|lxstat|access|faccessat|eaccess|euidaccess|opendir|scandir|statx|canonicalize_file_name|readlink_chk|realpath_chk)(64)?(_2)?')
	[ -z "$more" ] || { echo "$more"; return 1; }
}
opened_by_name() { # COMMAND...: with dlopen, dlsym, and dlvsym
	cc -Wall -Wextra -Werror -o "$work/dlopen" "$tests/verbs/dlopen.c" && "$@" "$work/dlopen" < "$tests/verbs/nccl.txt"
}
opened_in_environment() {
	(eval "$("$isolane" verbs env)" && opened_by_name env)
}
# Packages of another release of Debian, unpacked next to the installed ones, with the program and its libraries in /opt.
unpack_release() { # SUITE: sets newer (directory)
	newer=$work/$1
	local apt=(apt-get -q -o "Dir::Etc::sourcelist=$newer.list" -o Dir::Etc::sourceparts=/dev/null -o APT::Sandbox::User=root
		-o "Dir::State::lists=$newer.lists" -o "Dir::Cache=$newer.cache" -o Acquire::Retries=3)
	mkdir -p "$newer".lists/partial "$newer".cache/archives/partial "$newer.packages" "$newer"/{dev,proc,sys,tmp,opt/bin,opt/lib}
	echo "deb http://deb.debian.org/debian $1 main" > "$newer.list"
	"${apt[@]}" update && (cd "$newer.packages" && "${apt[@]}" download libibverbs1 librdmacm1t64 ibverbs-providers ibverbs-utils \
		rdmacm-utils perftest libibumad3 libnl-3-200 libnl-route-3-200 libpci3 libc6 libgcc-s1 zlib1g libudev1 libcap2) || return 1
	for package in "$newer".packages/*.deb; do dpkg-deb -x "$package" "$newer" || return 1; done
	ln -s usr/lib "$newer/lib" && ln -s usr/lib64 "$newer/lib64" && cp "$isolane" "$newer/opt/bin/" &&
		cp -r "$(dirname "$isolane")/libisolane_ibverbs.so" "$libraries" "$newer/opt/lib/"
}
in_newer() { # COMMAND...: with the files of the release, and the devices of this machine
	# shellcheck disable=SC2016
	unshare -rm bash -c 'cd "$0" && for dir in dev proc sys; do mount --rbind /$dir $dir || exit; done; exec chroot . "$@"' "$newer" "$@"
}
starts_in_newer() { # COMMAND...: a function of this file whose programs are the ones of the release
	(
		verbs() { in_newer /opt/bin/isolane verbs run -- "$@"; }
		"$@"
	)
}
shows_devices() { verbs ibv_devinfo -v -d "$device" | grep PORT_ACTIVE; }
chooses_in_newer() { # the libraries with versions, without a warning
	[ "$(in_newer /opt/bin/isolane verbs env 2>&1 | grep -c 'LD_LIBRARY_PATH=.*/isolane-verbs')" = 1 ]
}
unknown_version() { # prints a version of the release that the libraries lack
	in_newer /opt/bin/isolane verbs env 2>&1 | grep -o 'does not have its version [A-Z0-9_.]*'
}
check_release() { # SUITE NAME
	local in="of $2"
	if ! unpack_release "$1" > "$work/unpack" 2>&1; then
		echo "not run: the packages of $2 cannot be downloaded: $(tail -n 1 "$work/unpack")"
		return
	elif [ "$1" = sid ] && unknown_version > "$work/unknown"; then # it changes at any time
		echo "not run: this version of Isolane $(cat "$work/unknown"), which $2 has"
		return
	fi
	check "the symbol versions are those $in" has_versions_of "$newer/usr/lib/$(uname -m)-linux-gnu" || status=1
	check "the providers $in find their private symbols" has_imports_of_providers "$newer/usr/lib/$(uname -m)-linux-gnu" || status=1
	check "verbs run chooses the libraries with versions, with those $in" chooses_in_newer || status=1
	check "ibv_devinfo $in" starts_in_newer shows_devices || status=1
	check "ib_send_bw $in" starts_in_newer perftest ib_send_bw -s 4096 || status=1
	check "ib_write_bw -R $in" starts_in_newer pair ib_write_bw -F -n 200 -R || status=1
	check "rping $in" starts_in_newer managed rping -s -a 127.0.0.1 -C 50 -- rping -c -a 127.0.0.1 -C 50 || status=1
}
lists_devices() {
	local as_user=()
	[ "$(id -u)" != 0 ] || as_user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
	cp -r "$isolane" "$(dirname "$isolane")/libisolane_ibverbs.so" "$libraries" "$work/" && chmod 755 "$work" "$work"/* || return 1
	"${as_user[@]}" "$work/isolane" verbs run -- ibv_devices | grep -w "$device" || return 1
	"${as_user[@]}" "$work/isolane" verbs run -- ibv_devinfo -v -d "$device" > "$work/info" || { cat "$work/info"; return 1; }
	grep -q PORT_ACTIVE "$work/info" && grep -q 'GID\[' "$work/info" && return 0
	cat "$work/info"
	return 1
}
other_paths_are_unaffected() {
	cmp <(cat /etc/passwd) <(verbs cat /etc/passwd) && cmp <(ls -l /usr/lib) <(verbs ls -l /usr/lib) &&
		[ "$(verbs realpath /usr/../etc/passwd)" = /etc/passwd ] && ! verbs test -e /dev/infinibandx
}
leaves_no_files() {
	local before after
	before=$(ls -d "${TMPDIR:-/tmp}"/isolane-verbs-* 2>/dev/null)
	verbs test -c /dev/infiniband/uverbs0 && verbs cat "/sys/class/infiniband/$device/node_type" || return 1
	after=$(ls -d "${TMPDIR:-/tmp}"/isolane-verbs-* 2>/dev/null)
	[ "$before" = "$after" ]
}
managed() { # SERVER OPTION... -- CLIENT OPTION...: programs that connect with librdmacm, at their own port
	local server=() client status attempt
	while [ "$1" != -- ]; do server+=("$1"); shift; done
	shift; client=("$@")
	verbs "${server[@]}" > "$work/server" 2>&1 & server=$!
	for attempt in $(seq 60); do
		verbs "${client[@]}"; status=$?
		[ $status = 0 ] && break
		kill -0 "$server" 2>/dev/null || break
		sleep 0.5
	done
	# A server that never ends is stopped, which is no failure.
	[ "${server_ends-yes}" = yes ] || { pkill -P "$server"; wait "$server"; return $status; }
	wait "$server" && [ $status = 0 ] && return 0
	echo "client: status $status after $attempt attempts; server:"; cat "$work/server"
	return 1
}
rping_after_port_scan() {
	local port server
	port=$(free_port)
	verbs rping -s -a 127.0.0.1 -p "$port" -C 20 > "$work/server" 2>&1 & server=$!
	wait_for 30 is_listening_or_ended "$port" $server
	for _ in 1 2 3; do
		python3 -c 'import socket, sys; socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()' "$port"
	done
	verbs rping -c -a 127.0.0.1 -p "$port" -C 20 && wait $server && return 0
	cat "$work/server"
	return 1
}
starts_iser_target() { # tgtd listens for iSER at one port in both families
	local server status
	verbs tgtd -f -C 77 --iscsi "portal=127.0.0.1:$(free_port)" > "$work/server" 2>&1 & server=$!
	wait_for 30 tgtadm -C 77 --op show --mode sys
	tgtadm -C 77 --op show --mode sys | grep 'iser: ready'; status=$?
	tgtadm -C 77 --op delete --mode system
	wait $server && [ $status = 0 ] && return 0
	cat "$work/server"
	return 1
}
refuses_rsockets() {
	local program status
	for program in "rstream -s" "riostream -s" "udpong -s" "rcopy $work/layout.c"; do
		# shellcheck disable=SC2086
		verbs $program 127.0.0.1 > "$work/rsocket" 2>&1; status=$?
		# A signal gives 129 to 192.
		[ $status -lt 124 ] || [ $status = 255 ] &&
			[ "$(grep -c 'isolane: rsocket: rsockets are not supported' "$work/rsocket")" = 1 ] && continue
		echo "$program: status $status"; cat "$work/rsocket"
		return 1
	done
}
libfabric() { # OPTION...
	local port server status
	# Its cache of memory regions patches munmap, which a thread that ends may be running.
	local -x FI_MR_CACHE_MONITOR=disabled
	port=$(free_port)
	verbs fi_pingpong "$@" -I 20 -B "$port" > "$work/server" 2>&1 & server=$!
	wait_for 30 is_listening_or_ended "$port" $server
	verbs fi_pingpong "$@" -I 20 -P "$port" 127.0.0.1; status=$?
	wait $server && [ $status = 0 ] && return 0
	echo "client: status $status; server:"; cat "$work/server"
	return 1
}
rdma_core() { # its own tests, without the ones of vendors
	local from=/usr/share/doc/rdma-core/tests to=$work/rdma-core
	mkdir -p "$to" && cp "$from"/* "$to" && gunzip -qf "$to"/*.gz && rm -f "$to"/test_{mlx5,efa,cuda}*
	(cd "$to" && verbs /usr/bin/python3 run_tests.py --dev "$device" -v) > "$work/tests" 2>&1; local status=$?
	grep -E '^(Ran|OK|FAILED)' "$work/tests"
	[ $status = 0 ] && [ "$(grep -c '\.\.\. ok$' "$work/tests")" -ge 80 ] && return 0
	grep -vE 'skipped|ok$' "$work/tests" | tail -n 60
	return 1
}
ucx() { # TLS TEST SIZE [OPTION...]
	UCX_TLS=$1 UCX_NET_DEVICES=$device:1 UCX_LOG_LEVEL=error pair ucx_perftest -t "$2" -s "$3" -n 500 "${@:4}"
}

calls_of_main_thread() { # MILLISECONDS: while a dedicated thread drives the sockets
	local port server
	port=$(free_port)
	"$isolane" verbs bench --server "127.0.0.1:$port" > /dev/null 2>&1 & server=$!
	wait_for 30 is_listening "$port"
	strace -f -qq -o "$work/calls" "$isolane" verbs bench "127.0.0.1:$port" --depth 16 --time "$1ms" --progress thread:1 > /dev/null
	kill $server; wait $server 2>/dev/null
	awk 'NR == 1 { main = $1 } $1 == main { calls++ } END { print calls + 0 }' "$work/calls"
}
dedicated_progress_makes_no_calls() { # the number of calls does not grow with the number of operations
	local short long
	short=$(calls_of_main_thread 100); long=$(calls_of_main_thread 1500)
	echo "$short calls in 100 ms, $long in 1500 ms"
	[ "$short" -gt 50 ] && [ $((long - short)) -lt 200 ]
}

status=0
check "the layout is the one of the headers" headers_agree || status=1
check "the symbol versions are those of the installed libraries" has_versions_of_installed_libraries || status=1
check "the installed providers find their private symbols" has_imports_of_installed_providers || status=1
check "no other symbols are exported" exports_nothing_else || status=1
check "dlopen, dlsym, and dlvsym find the libraries, verbs run" opened_by_name verbs || status=1
check "dlopen, dlsym, and dlvsym find the libraries, verbs env" opened_in_environment || status=1
check "any user finds the devices" lists_devices || status=1
check "other paths are unaffected" other_paths_are_unaffected || status=1
check "the files of the devices are removed" leaves_no_files || status=1
check "variables hold without the options of verbs run" keeps_variables || status=1
check "a process without a free port names the ports" names_missing_port || status=1
for options in rc "rc -e" "rc -N" srq "srq -e" uc ud; do
	# shellcheck disable=SC2086
	check "pingpong $options" pingpong $options || status=1
done
for options in "ib_send_lat -s 64" "ib_write_lat -s 64" "ib_read_lat" "ib_atomic_lat" "ib_send_bw -s 64" "ib_write_bw -s 65536" \
	"ib_read_bw -s 65536" "ib_atomic_bw" "ib_write_bw -b" "ib_send_bw -q 8" "ib_send_bw -q 4 --use-srq" "ib_send_lat -e" \
	"ib_send_bw -e" "ib_send_lat -c UD" "ib_write_bw -c UC" "ib_read_bw -s 1048576 -q 2"; do
	# shellcheck disable=SC2086
	check "$options" perftest $options || status=1
done
"$isolane" key gen "$work/key" > /dev/null && "$isolane" key gen "$work/other" > /dev/null || status=1
check "both ends prove the same shared key" same_key || status=1
check "another shared key fails" keyed "$work/key" "$work/other" "another shared key: set ISOLANE_VERBS_KEY" || status=1
check "no shared key at the client fails" keyed "$work/key" "" "requires a shared key\|has no shared key" || status=1
check "no shared key at the server fails" keyed "" "$work/key" "requires a shared key\|has no shared key" || status=1
check "a missing file of the shared key fails" keyed "$work/key" "$work/missing" "ISOLANE_VERBS_KEY=.*cannot read the key" || status=1
check "the stages of an unmodified program can be read" records_stages || status=1
check "rping" managed rping -s -a 127.0.0.1 -C 50 -- rping -c -a 127.0.0.1 -C 50 || status=1
check "rping after a port scan" rping_after_port_scan || status=1
check "ucmatose with private data and many connections" managed ucmatose -c 60 -C 20 -- ucmatose -s 127.0.0.1 -c 60 -C 20 || status=1
check "ucmatose with 500 connections" managed ucmatose -c 500 -- ucmatose -s 127.0.0.1 -c 500 || status=1
check "tgtd with iSER" starts_iser_target || status=1
check "rsockets are refused with one line" refuses_rsockets || status=1
check "rdma_server and rdma_client" managed rdma_server -- rdma_client -s 127.0.0.1 || status=1
check "udaddy" managed udaddy -- udaddy -s 127.0.0.1 || status=1
server_ends=no check "cmtime" managed cmtime -- cmtime -s 127.0.0.1 -c 20 || status=1
check "ib_write_bw -R" pair ib_write_bw -F -n 200 -R || status=1
check "rdma-core's own tests" rdma_core || status=1
if unshare -rm true; then
	check_release trixie "Debian 13"
	check_release sid "Debian sid"
else
	echo "not run: programs of other releases of Debian need a mount namespace"
fi
if strace -qq -o /dev/null true; then
	check "posts and polls make no system call with a dedicated thread" dedicated_progress_makes_no_calls || status=1
else
	echo "not run: strace may not trace programs here"
fi
for options in "rc_v,ud_v,self tag_lat 64" "rc_v,ud_v,self ucp_put_bw 1048576" "rc_v,ud_v,self ucp_get 1048576" \
	"rc_v,ud_v,self ucp_fadd 8" "all tag_bw 65536" "rc_v,ud_v,self tag_lat 64 -E sleep"; do
	# shellcheck disable=SC2086
	check "ucx_perftest ${options#* } over ${options%% *}" ucx $options || status=1
done
# libfabric ignores the devices of the interface lo.
if "$isolane" verbs devices | awk 'NR > 1 && $3 != "lo" { found = 1 } END { exit !found }'; then
	check "fi_info finds endpoints without a node" verbs fi_info -p verbs -t FI_EP_MSG || status=1
	check "fi_pingpong over verbs" libfabric -p verbs -e msg || status=1
	check "fi_pingpong over verbs;ofi_rxm" libfabric -p "verbs;ofi_rxm" -e rdm || status=1
else
	echo "not run: libfabric needs a device besides the one of lo"
fi
exit $status
