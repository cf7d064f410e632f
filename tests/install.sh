#!/bin/bash
# install.sh [CARGO-PROFILE] - run scripts/install into a temporary prefix, and use each file that it installs.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/tests/lib.sh"
prefix=$work/prefix
isolane=$prefix/bin/isolane
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib XDG_RUNTIME_DIR=$work

man_pages() { # the pages of docs/man
	diff -r "$root/docs/man" "$prefix/share/man/man1"
}
bash_completes() { # the beginning of a subcommand
	# shellcheck disable=SC2016
	PATH=$prefix/bin:$PATH COMP_LINE="isolane ser" COMP_POINT=11 bash -c '. "$1"; _isolane isolane ser isolane
		printf "%s\n" "${COMPREPLY[@]}"' - "$prefix/share/bash-completion/completions/isolane" | grep -qx serve
}
completes() { # FILE TEXT
	grep -q "$2" "$prefix/share/$1"
}
preloads() {
	[ "$("$isolane" verbs libs)" -ef "$prefix/lib/isolane-verbs" ] &&
		"$isolane" verbs run -- env | grep -qx "LD_PRELOAD=$prefix/bin/../lib/isolane-verbs/libibverbs.so.1" &&
		FI_PROVIDER_PATH=/other "$isolane" verbs run -- env | grep -qx "FI_PROVIDER_PATH=$prefix/bin/../lib/libfabric:/other" &&
		"$isolane" verbs run -- fi_info -p isolane -t FI_EP_MSG &&
		"$isolane" verbs run -- python3 -c 'import ctypes; print(ctypes.CDLL("librdmacm.so.1").rdma_create_id)'
}
preloads_into_sockets() {
	"$isolane" engine run --socket "$work/engine.sock" -- env |
		grep -qx "LD_PRELOAD=$prefix/bin/../lib/libisolane_preload.so\|LD_PRELOAD=$prefix/lib/libisolane_preload.so"
}
start_engine() { # sets engine (PID)
	"$isolane" --log-level warn engine --socket "$work/engine.sock" < /dev/null > "$logs/engine.out" 2>&1 &
	engine=$!
	wait_for 30 test -S "$work/engine.sock"
}
echo_server() { # sets server (PID); its first line is its port
	python3 -c '
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    stream = listener.accept()[0]
    while data := stream.recv(4096):
        stream.sendall(data)' > "$work/port" &
	server=$!
	wait_for 30 test -s "$work/port"
}
echoes() { # PROGRAM
	[ "$("$1" "127.0.0.1:$(cat "$work/port")" hello "$work/engine.sock")" = hello ]
}
compile() { # EXAMPLE PROGRAM ARGUMENT...
	local example=$1 program=$2; shift 2
	cc -Wall -Wextra -Werror -std=c11 "$root/crates/isolane-capi/examples/$example.c" -o "$program" "$@"
}
shared() { # with the flags of pkg-config
	# shellcheck disable=SC2046
	compile echo "$work/shared" $(pkg-config --cflags --libs isolane) && ldd "$work/shared" | grep -q "$prefix/lib/libisolane.so.0"
}
static() {
	compile echo "$work/static" -I "$prefix/include" "$prefix/lib/libisolane.a" -lgcc_s -lm -lpthread -ldl
}

reads_cache() {
	# shellcheck disable=SC2046
	compile kv_cache "$work/kv_cache" $(pkg-config --cflags --libs isolane) &&
		"$work/kv_cache" "$work/cache.img,size=64M" | grep '^64 blocks of 64 KiB in '
}

check "scripts/install installs below a prefix" "$root/scripts/install" --profile "${1-release}" "$prefix" || exit 1
check "the installed program names its version" "$isolane" --version
check "the manual pages are installed" man_pages
check "bash reads its completions" bash -n "$prefix/share/bash-completion/completions/isolane"
check "bash completes subcommands" bash_completes
check "zsh completes subcommands" completes zsh/site-functions/_isolane '^#compdef isolane'
check "fish completes subcommands" completes fish/vendor_completions.d/isolane.fish '^complete .*--command isolane '
check "the program finds the installed preload library" preloads
check "echo.c compiles with pkg-config" shared
check "echo.c compiles with the static library" static
check "kv_cache.c compiles, and reads blocks of a file" reads_cache
check "the installed program starts an engine" start_engine
check "the program finds the installed library for sockets" preloads_into_sockets
check "an echo server starts" echo_server
check "echo.c uses the engine, shared library" echoes "$work/shared"
check "echo.c uses the engine, static library" echoes "$work/static"
kill "${server-}" "${engine-}"; wait
