#!/bin/bash
# preload.sh [--long] - `isolane engine run` with unmodified programs: the same output as without it, through the engine.
#
# Needs target/release/isolane and libisolane_preload.so, and the packages of .ci/packages. `--long` adds servers of
# .ci/packages-preload (PostgreSQL, OpenSSH, rsync), CPython's own tests of sockets, and kills of the engine under each.
# Everything listens on loopback, and ends with the suite.
set -u
. "$(dirname "$0")/lib.sh"
long=${1-}
programs=$tests/preload_programs.py
socket=$work/engine.sock
export ISOLANE_ADOPT=always
supervisor=
trap 'end_engine; finish' EXIT

start_engine() { # OPTION...
	"$isolane" --log-level warn engine --socket "$socket" "$@" < /dev/null > "$work/engine.out" 2>> "$logs/engine.log" & supervisor=$!
	wait_for 30 grep -q '^listening on ' "$work/engine.out"
}
end_engine() {
	[ -z "$supervisor" ] || { kill -TERM "$supervisor"; wait "$supervisor"; } 2> /dev/null
	supervisor=
}
limited() { timeout -k 5 "${limit:-60}" "$@"; }
run() { # STATS PROGRAM...: through the engine
	limited "$isolane" engine run --socket "$socket" --stats="$1" -- "${@:2}"
}
served() { # STATS: at least 90 % of the messages of all its processes went through the engine
	awk '{ for (i = 1; i < NF; i++) { if ($i == "engine:") e += $(i + 1); if ($i == "kernel:") k += $(i + 1) } }
		END { print e + 0, "messages through the engine,", k + 0, "by the kernel"; exit !(e > 0 && e >= 9 * k) }' "$1"
}
engines() { cat "/proc/$supervisor/task/$supervisor/children"; }
replaced() { [ -n "$(engines)" ] && [ "$(engines)" != "$1" ]; }
kill_engine() { # and wait for the next
	local old
	old=$(engines)
	# shellcheck disable=SC2086
	kill -KILL $old; wait_for 30 replaced "$old"
}

same() { # NAME: a program of preload_programs.py
	rm -f "$work/stats"
	limited "$programs" "$1" > "$work/native" 2>&1 || { cat "$work/native"; return 1; }
	run "$work/stats" "$programs" "$1" > "$work/engine" 2>&1 || { cat "$work/engine"; return 1; }
	diff "$work/native" "$work/engine" && grep -q ' [1-9][0-9]* adopted' "$work/stats"
}
same_without_engine() { # NAME: a program that has, or gets, something that its sockets must not be adopted with
	limited "$programs" "$1" > "$work/native" 2>&1 || { cat "$work/native"; return 1; }
	run "$work/stats" "$programs" "$1" > "$work/engine" 2>&1 || { cat "$work/engine"; return 1; }
	diff "$work/native" "$work/engine"
}
same_and_served() { same "$1" && served "$work/stats"; }
same_despite_kills() { # SECONDS KILLS
	local client kill
	rm -f "$work/stats"
	SECONDS_OF_STREAMS=$1 run "$work/stats" "$programs" streams > "$work/engine" 2>&1 & client=$!
	wait_for 30 grep -qx started "$work/engine"
	for ((kill = 0; kill < $2; kill++)); do sleep 0.4; kill_engine || return 1; done
	wait $client || { cat "$work/engine"; return 1; }
	served "$work/stats" && grep -qx 'streams 0' "$work/engine"
}
same_without_supervisor() {
	local client
	rm -f "$work/stats"
	SECONDS_OF_STREAMS=2 run "$work/stats" "$programs" streams > "$work/engine" 2>&1 & client=$!
	wait_for 30 grep -qx started "$work/engine"
	sleep 0.5; kill -KILL "$supervisor"; wait "$supervisor" 2> /dev/null; supervisor=
	wait $client || { cat "$work/engine"; return 1; }
	start_engine || return 1
	grep -q 'returned (.*engine [1-9]' "$work/stats" && grep -qx 'streams 0' "$work/engine" && return 0
	cat "$work/stats" "$work/engine"; return 1
}
waits_without_supervisor() { # whose program is asleep when both are killed
	local client
	rm -f "$work/stats" "$work/input"; mkfifo "$work/input"
	echo | "$programs" outlived > "$work/native" || return 1
	run "$work/stats" "$programs" outlived < "$work/input" > "$work/engine" 2>&1 & client=$!
	exec 3> "$work/input"
	wait_for 30 grep -qx started "$work/engine" || return 1
	kill -KILL "$supervisor" $(engines); wait "$supervisor" 2> /dev/null; supervisor=
	echo >&3; exec 3>&-
	wait $client; start_engine || return 1
	diff "$work/native" "$work/engine" && grep 'engine [1-9]' "$work/stats"
}
despite_kills() { # CHECK...: with the engine killed up to 5 times, whenever it has connections, and at least once
	local result killer
	: > "$work/kills"; : > "$work/killing"
	kill_busy_engines & killer=$!
	"$@"; result=$?
	rm "$work/killing"; wait $killer || return 1
	echo "$(wc -l < "$work/kills") kills"
	[ -s "$work/kills" ] && return $result
}
kill_busy_engines() { # while the check runs
	local log=$logs/engine.log seen
	while [ -e "$work/killing" ] && [ "$(wc -l < "$work/kills")" -lt 5 ]; do
		seen=$(wc -c < "$log")
		kill -USR1 "$supervisor"; sleep 0.05
		tail -c "+$((seen + 1))" "$log" | grep -q ' [1-9][0-9]* streams' || continue
		kill_engine || return 1
		echo killed >> "$work/kills"; sleep 0.5
	done
}
only_short_messages() { # without ISOLANE_ADOPT
	rm -f "$work/stats"
	env -u ISOLANE_ADOPT "$isolane" engine run --socket "$socket" --stats="$work/stats" -- "$programs" vectors > /dev/null &&
		grep ' 0 adopted' "$work/stats" && rm "$work/stats" &&
		env -u ISOLANE_ADOPT "$isolane" engine run --socket "$socket" --stats="$work/stats" -- "$programs" sizes > /dev/null &&
		served "$work/stats"
}
dialogs_stay_on_two_cores() { # without ISOLANE_ADOPT: the engine has at most one other core
	local core
	core=$(taskset -pc $$ | sed 's/.*: *\([0-9]*\).*/\1/'); rm -f "$work/stats"
	env -u ISOLANE_ADOPT taskset -c "$core" "$isolane" engine run --socket "$socket" --stats="$work/stats" -- "$programs" dialog &&
		grep ' 0 adopted' "$work/stats"
}
refuses() { # TEXT COMMAND...
	! limited "${@:2}" > "$work/error" 2>&1 && grep -F "$1" "$work/error" && [ "$(wc -l < "$work/error")" = 1 ] && return 0
	cat "$work/error"; return 1
}
refuses_programs() {
	printf 'int main(void) { return 0; }' > "$work/static.c" && cc -static -o "$work/static" "$work/static.c" || return 1
	refuses 'it is linked statically' "$isolane" engine run --socket "$socket" -- "$work/static" || return 1
	refuses 'ISOLANE_ADOPT=sometimes: not a policy; write always' env ISOLANE_ADOPT=sometimes "$isolane" engine run --socket "$socket" -- true || return 1
	refuses 'ISOLANE_PRELOAD=/nowhere' env ISOLANE_PRELOAD=/nowhere "$isolane" engine run --socket "$socket" -- true || return 1
	refuses 'no directory' "$isolane" engine run --socket "$work/nowhere/sock" -- true || return 1
	refuses 'cannot run no-such-program' "$isolane" engine run --socket "$socket" -- no-such-program
}
io_uring_is_missing() { # which prevents nothing else
	rm -f "$work/stats"
	run "$work/stats" python3 -c '
import ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall(425, 1, 0) == -1 and ctypes.get_errno() == errno.ENOSYS, ctypes.get_errno()
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
near.sendall(b"x")' && grep ' 1 adopted' "$work/stats"
}
moves_nothing_with_ring() { # LIBRARY: a library that makes a ring past the C library, or an empty name
	rm -f "$work/stats"
	RING=$1 limited "$programs" rings > "$work/native" || { cat "$work/native"; return 1; }
	RING=$1 limited "$isolane" engine run --io-uring --socket "$socket" --stats="$work/stats" -- "$programs" rings > "$work/engine" || return 1
	cat "$work/stats"
	diff "$work/native" "$work/engine" && grep ': 2 adopted, 2 returned (call 2);' "$work/stats"
}
moves_nothing_with_unseen_ring() {
	cat > "$work/ring.c" <<-'END'
		long make_ring(void *parameters)
		{
		#ifdef __x86_64__
			long result;
			__asm__ volatile("syscall" : "=a"(result) : "a"(425), "D"(1), "S"(parameters) : "rcx", "r11", "memory");
		#else
			register long result __asm__("x0") = 1, number __asm__("x8") = 425;
			register void *second __asm__("x1") = parameters;
			__asm__ volatile("svc 0" : "+r"(result) : "r"(number), "r"(second) : "memory");
		#endif
			return result;
		}
	END
	cc -shared -fPIC -o "$work/ring.so" "$work/ring.c" && moves_nothing_with_ring "$work/ring.so"
}
leaves_others_alone() { # programs without connections
	cmp <(cat /etc/passwd) <(run "$work/stats" cat /etc/passwd) && [ "$(run "$work/stats" sh -c 'echo $((6 * 7)) | cat; exit 3'; echo $?)" = "42
3" ]
}

handlers_jump() { # out of waits
	cc -O1 -o "$work/jumps" "$tests/preload_jumps.c" || return 1
	rm -f "$work/stats"
	"$work/jumps" > "$work/native" && run "$work/stats" "$work/jumps" > "$work/engine" && diff "$work/native" "$work/engine" && grep ' 2 adopted' "$work/stats"
}
selects() { # with large sets, on small stacks
	rm -f "$work/stats"
	cc -O1 -Wl,-z,now -o "$work/selects" "$tests/preload_select.c" && "$work/selects" > "$work/native" &&
		run "$work/stats" "$work/selects" > "$work/engine" && diff "$work/native" "$work/engine" && grep ' 2 adopted' "$work/stats"
}
returns_to_plugins() { # that call the C library past the preloaded one
	printf '#include <unistd.h>\nint plugin_read(int fd, void *bytes, int count) { return read(fd, bytes, count); }\n' > "$work/plugin.c" &&
		cc -shared -fPIC -o "$work/plugin.so" "$work/plugin.c" && PLUGIN=$work/plugin.so same plugins && PLUGIN=$work/plugin.so same spaces
}
knows_all_names() { # of the functions that it has, also those with two underscores
	local library c_library
	library=$(dirname "$isolane")/libisolane_preload.so
	c_library=$(ldd "$library" | awk '$1 == "libc.so.6" { print $3 }')
	nm -D --defined-only "$library" | awk '{ print $3 }' > "$work/own" && nm -D --defined-only "$c_library" | grep -v GLIBC_PRIVATE > "$work/symbols" || return 1
	awk 'NR == FNR { own[$1]; next }
		{ name = $3; sub(/@.*/, "", name); names[$1] = names[$1] " " name; if (name in own) { count++; known[$1] } }
		END {
			for (address in known) { split(names[address], all, " "); for (i in all) if (!(all[i] in own)) { print all[i], "is not intercepted"; missing = 1 } }
			print count, "functions"; exit missing || count < 80
		}' "$work/own" "$work/symbols"
}
handler_sends() { # while the program allocates memory
	rm -f "$work/stats"
	cc -O1 -pthread -o "$work/handler" "$tests/preload_handler.c" && run "$work/stats" "$work/handler" && served "$work/stats"
}

redis() { # a server with a save in the background, and its benchmark
	local port server
	port=$(free_port); rm -f "$work/stats"
	run "$work/stats" redis-server --port "$port" --dir "$work" --save "" > "$work/redis.log" 2>&1 & server=$!
	wait_for 30 redis-cli -p "$port" ping > /dev/null
	run "$work/stats" redis-benchmark -p "$port" -q -n 4000 -c 10 -t set,get,lrange_100 || return 1
	run "$work/stats" redis-benchmark -p "$port" -q -n 30000 -c 10 -P 16 -t set,get || return 1
	run "$work/stats" redis-cli -p "$port" set key value | grep -x OK || return 1
	run "$work/stats" redis-cli -p "$port" bgsave
	wait_for 30 saved "$port" && [ "$(redis-cli -p "$port" get key)" = value ] || return 1
	redis-cli -p "$port" shutdown nosave; wait $server
	[ -s "$work/dump.rdb" ] && served "$work/stats"
}
saved() { redis-cli -p "$1" info persistence | grep -q 'rdb_bgsave_in_progress:0' && [ -s "$work/dump.rdb" ]; }
iperf() { # OPTION...
	local port server
	port=$(free_port); rm -f "$work/stats"
	run "$work/stats" iperf3 -s -1 -p "$port" --forceflush > "$work/iperf" 2>&1 & server=$!
	wait_for 30 grep -q listening "$work/iperf"
	run "$work/stats" iperf3 -c 127.0.0.1 -p "$port" -t 1 "$@" | grep -E 'sender|receiver|error' && wait $server || return 1
	served "$work/stats"
}
nginx_serves() {
	local port server file
	port=$(free_port); mkdir -p "$work/nginx/html" "$work/nginx/tmp"
	head -c 300000 /dev/urandom > "$work/nginx/html/large"; echo small > "$work/nginx/html/small"
	rm -f "$work/stats"
	{
		echo "user $(id -un); daemon off; worker_processes 1; pid $work/nginx/pid; error_log $work/nginx/log;"
		echo 'events { worker_connections 256; }'
		echo "http { access_log off; sendfile off; client_body_temp_path $work/nginx/tmp; proxy_temp_path $work/nginx/tmp;"
		echo "fastcgi_temp_path $work/nginx/tmp; uwsgi_temp_path $work/nginx/tmp; scgi_temp_path $work/nginx/tmp;"
		echo "server { listen 127.0.0.1:$port; root $work/nginx/html; } }"
	} > "$work/nginx/conf"
	run "$work/stats" nginx -c "$work/nginx/conf" -e "$work/nginx/log" & server=$!
	wait_for 30 curl -sf -o /dev/null "http://127.0.0.1:$port/small" || { cat "$work/nginx/log"; return 1; }
	for file in small large; do
		run "$work/stats" curl -sf -o "$work/out" "http://127.0.0.1:$port/$file" && cmp "$work/out" "$work/nginx/html/$file" || return 1
	done
	run "$work/stats" wrk -t 1 -c 8 -d 1 "http://127.0.0.1:$port/small" > "$work/wrk" && grep Requests/sec "$work/wrk" &&
		! grep 'errors' "$work/wrk" || { cat "$work/wrk"; return 1; }
	kill -QUIT "$(cat "$work/nginx/pid")"; wait $server
	served "$work/stats"
}

transfers_files() { # rsync, by its daemon and by ssh
	local dir=$work/sync port server ssh
	port=$(free_port); rm -rf "$dir"; mkdir -p "$dir/source" "$dir/daemon" /run/sshd
	for file in $(seq 40); do head -c "$((RANDOM * 40))" /dev/urandom > "$dir/source/$file"; done
	printf '%s\n' "port = $port" 'address = 127.0.0.1' 'use chroot = no' '[files]' "path = $dir/daemon" 'read only = no' \
		"uid = $(id -u)" "gid = $(id -g)" > "$dir/rsyncd.conf"
	rm -f "$work/stats"
	run "$work/ignored" rsync --daemon --no-detach --config="$dir/rsyncd.conf" & server=$!
	wait_for 30 rsync -q "rsync://127.0.0.1:$port/" || return 1
	run "$work/stats" rsync -a "$dir/source/" "rsync://127.0.0.1:$port/files/" && diff -r "$dir/source" "$dir/daemon" || return 1
	kill $server; wait $server
	port=$(free_port)
	ssh-keygen -q -t ed25519 -N '' -f "$dir/host" && ssh-keygen -q -t ed25519 -N '' -f "$dir/key" || return 1
	printf '%s\n' "Port $port" 'ListenAddress 127.0.0.1' "HostKey $dir/host" "AuthorizedKeysFile $dir/key.pub" \
		'StrictModes no' 'UsePAM no' "PidFile $dir/pid" > "$dir/sshd.conf"
	run "$work/ignored" "$(command -v sshd || echo /usr/sbin/sshd)" -D -f "$dir/sshd.conf" -E "$dir/sshd.log" & server=$!
	ssh="ssh -p $port -i $dir/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
	wait_for 30 test -s "$dir/pid"
	# shellcheck disable=SC2086
	run "$work/stats" $ssh "$(id -un)@127.0.0.1" cat < "$programs" | cmp - "$programs" || { cat "$dir/sshd.log"; return 1; }
	run "$work/stats" rsync -a -e "$ssh" "$dir/source/" "$(id -un)@127.0.0.1:$dir/ssh/" && diff -r "$dir/source" "$dir/ssh" || return 1
	kill "$(cat "$dir/pid")"; wait $server
	served "$work/stats"
}
postgres() { # a server with a process for each client, and its benchmark; the engine serves the user postgres
	local bin port server as=()
	bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1); port=$(free_port)
	rm -rf "$work/stats" "$work/data"; : > "$work/stats"; chmod 666 "$work/stats"; mkdir -p "$work/data"
	[ "$(id -u)" != 0 ] || { as=(setpriv --reuid postgres --regid postgres --init-groups); chown postgres "$work/data"; }
	"${as[@]}" "$bin/initdb" -D "$work/data" -A trust -N > /dev/null || return 1
	pg() { limited "${as[@]}" env HOME=/ "$isolane" engine run --socket "$socket" --stats="$work/stats" -- "$@"; }
	pg "$bin/postgres" -D "$work/data" -p "$port" -k '' -h 127.0.0.1 > "$work/pg.log" 2>&1 & server=$!
	wait_for 30 "$bin/pg_isready" -q -h 127.0.0.1 -p "$port" || { cat "$work/pg.log"; return 1; }
	pg "$bin/pgbench" -i -q -h 127.0.0.1 -p "$port" -s 2 postgres && pg "$bin/pgbench" -h 127.0.0.1 -p "$port" -c 4 -T 3 postgres || return 1
	pg "$bin/psql" -h 127.0.0.1 -p "$port" -Atc 'select count(*) from pgbench_accounts' postgres | grep -x 200000 || return 1
	# Each transaction adds the same amount to an account, a teller, a branch, and the history.
	pg "$bin/psql" -h 127.0.0.1 -p "$port" -AtF ' ' -c 'select (select sum(abalance) from pgbench_accounts),
		(select sum(tbalance) from pgbench_tellers), (select sum(bbalance) from pgbench_branches),
		(select sum(delta) from pgbench_history)' postgres | awk '{ print } END { exit !(NF == 4 && $1 == $2 && $2 == $3 && $3 == $4) }' || return 1
	"${as[@]}" kill -INT "$(head -n 1 "$work/data/postmaster.pid")"; wait $server
	served "$work/stats"
}
serve_postgres() { # with an engine that serves its user as well
	end_engine; chmod 755 "$work"
	if [ "$(id -u)" = 0 ]; then start_engine --allow-uid "$(id -u postgres)"; else start_engine; fi
}
replication() { # of redis, from a file and without one: replicas that start during the load have what a native server has
	local ports=() servers=() index expected load
	rm -rf "$work/stats" "$work"/redis-?; mkdir "$work"/redis-{0,1,2,3}
	for index in 0 1 2 3; do ports+=("$(free_port)"); done
	server() { # INDEX OPTION...: through the engine, except for 0
		local through=(run "$work/stats"); [ "$1" != 0 ] || through=(limited)
		"${through[@]}" redis-server --port "${ports[$1]}" --dir "$work/redis-$1" --save '' --enable-debug-command local \
			--repl-diskless-sync-delay 0 "${@:2}" > "$work/redis-$1.log" 2>&1 & servers+=($!)
		wait_for 30 redis-cli -p "${ports[$1]}" ping
	}
	ask() { redis-cli -p "${ports[$1]}" "${@:2}"; }
	has_digest() { [ "$(ask "$1" debug digest)" = "$2" ]; }
	awk 'BEGIN { for (i = 0; i < 30000; i++) {
		printf "SET s:%d %0*d\nRPUSH l:%d %d\nHSET h:%d f:%d %d\n", i % 9000, i % 300 + 1, i, i % 100, i, i % 50, i, i } }' > "$work/commands"
	server 0 && ask 0 --pipe < "$work/commands" && expected=$(ask 0 debug digest) || return 1
	server 1 --repl-diskless-sync no || return 1
	run "$work/stats" redis-cli -p "${ports[1]}" --pipe < "$work/commands" & load=$!
	server 2 --replicaof 127.0.0.1 "${ports[1]}" && wait $load || return 1
	for index in 1 2; do wait_for 30 has_digest $index "$expected" || { cat "$work/redis-$index.log"; return 1; }; done
	ask 1 config set repl-diskless-sync yes
	run "$work/stats" redis-benchmark -p "${ports[1]}" -q -n 30000 -c 10 -P 4 -r 5000 -t set,lpush,hset & load=$!
	server 3 --replicaof 127.0.0.1 "${ports[1]}" || return 1
	ask 1 client kill type replica    # they connect again
	wait $load || return 1
	for index in 2 3; do wait_for 30 has_digest $index "$(ask 1 debug digest)" || { cat "$work/redis-$index.log"; return 1; }; done
	for index in 0 3 2 1; do ask $index shutdown nosave; done; wait "${servers[@]}"
	served "$work/stats"
}
cpython() { # CPython's own tests of sockets have the same results; those of VSOCK hang on some systems
	local command=(/usr/bin/python3.11 -m test -v -i '*VSOCK*' test_socket test_selectors) limit=300
	rm -f "$work/stats"
	results() { grep -E '^test.* \.\.\. ' "$1" | sort; }
	[ -s "$work/cpython" ] || limited "${command[@]}" > "$work/cpython" 2>&1 || { tail -n 30 "$work/cpython"; return 1; }
	run "$work/stats" "${command[@]}" > "$work/engine" 2>&1
	cat "$work/stats"; grep -E '^(FAIL|ERROR|Ran|Tests result)' "$work/engine"
	diff <(results "$work/cpython") <(results "$work/engine") && [ "$(results "$work/engine" | wc -l)" -gt 600 ] && served "$work/stats"
}

start_engine || exit 1
status=0
check "programs without connections are unaffected" leaves_others_alone || status=1
check "programs and settings that cannot work are refused with one line" refuses_programs || status=1
check "io_uring is missing" io_uring_is_missing || status=1
check "connections return once a ring of io_uring is made" moves_nothing_with_ring '' || status=1
check "connections return once a ring is seen that was made past the C library" moves_nothing_with_unseen_ring || status=1
for name in sizes vectors flags full polls edges forked; do check "same output through the engine: $name" same_and_served "$name" || status=1; done
for name in locked ended; do check "same output without the engine: $name" same_without_engine "$name" || status=1; done
for name in ends signals levels late oneshots settings nested inherited shared children duplicates copies turns exhausted options; do check "same output: $name" same "$name" || status=1; done
check "same output through the engine: whole" same_and_served whole || status=1
for name in interrupted closed peeks empties limits names filtered namespaces rebinds prompt; do check "same output: $name" same "$name" || status=1; done
check "all names of the functions are intercepted" knows_all_names || status=1
check "connections return before plugins past the library are loaded" returns_to_plugins || status=1
check "a handler of a signal can send" handler_sends || status=1
check "handlers of signals can leave waits" handlers_jump || status=1
check "select reads no more than natively, on no more stack" selects || status=1
check "connections move only after many short messages" only_short_messages || status=1
check "dialogs stay with the kernel on two cores" dialogs_stay_on_two_cores || status=1
check "streams continue when the engine is killed" same_despite_kills 2 2 || status=1
check "streams continue when engine and supervisor are killed" same_without_supervisor || status=1
check "waits continue when engine and supervisor are killed" waits_without_supervisor || status=1
check "redis-server with BGSAVE, and redis-benchmark" redis || status=1
check "iperf3" iperf -l 64 || status=1
check "nginx with curl and wrk" nginx_serves || status=1
if [ "$long" ]; then
	check "streams continue when the engine is killed 20 times" same_despite_kills 12 20 || status=1
	check "redis-server, and its engine is killed" despite_kills redis || status=1
	check "iperf3, and its engine is killed" despite_kills iperf -l 64 -t 3 || status=1
	check "nginx, and its engine is killed" despite_kills nginx_serves || status=1
	check "redis replication" replication || status=1
	check "redis replication, and its engine is killed" despite_kills replication || status=1
	check "rsync and ssh" transfers_files || status=1
	check "rsync and ssh, and their engine is killed" despite_kills transfers_files || status=1
	check "CPython's tests of sockets" cpython || status=1
	check "CPython's tests of sockets, and their engine is killed" despite_kills cpython || status=1
	serve_postgres || exit 1
	check "PostgreSQL with pgbench" postgres || status=1
	check "PostgreSQL with pgbench, and its engine is killed" despite_kills postgres || status=1
fi
exit $status
