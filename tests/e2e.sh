#!/bin/bash
# e2e.sh [--long] [--switched] [SUITE...] - Isolane's host against Isolane's target, as programs.
#
# Suites: combinations (bench --verify over block sizes, depths, digests, I/O engines, and
# volumes), copy, restarts (either end restarts at random), killed (kill -9 loses nothing that was
# acknowledged as durable), engine (the same through an isolated engine, which is also killed and
# replaced: 5 times, with --long 100 times). --switched inverts the defaults.
# The closing line is `N passed, N failed`.
set -u
. "$(dirname "$0")/lib.sh"

long= run=e2e host_options=() engine_options=()
[ "${1-}" = --long ] && { long=1; shift; }
if [ "${1-}" = --switched ]; then
	shift; run=switched
	serve_options=(--fair-queueing off --scheduler dynamic --placement round-robin --zerocopy-threshold 0 --mode sleep)
	engine_options=(--lanes 2 --read-lanes 1 --poll-lanes 1 --share-depth --mode sleep)
	host_options=("${engine_options[@]}" --coalesce)    # an engine does not coalesce requests
fi
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(combinations copy restarts killed engine)

via=    # query of the URI that names the engine
uri() { echo "nvme+tcp://127.0.0.1:$1/$nqn?nsid=${2:-1}$via"; }
quiet_bench() { "$isolane" --log-level warn bench "$@" "${host_options[@]}"; }

# ---- combinations -----------------------------------------------------------------
digest_options() { case $1 in none) ;; header) echo -g;; data) echo -G;; both) echo -g -G;; esac; }

combination() { # TARGET PORT NSID BLOCK_SIZE DEPTH DIGESTS HOST_IO
	local time=0.5s
	[ -z "$long" ] || time=3s
	# shellcheck disable=SC2046
	check "bench --verify $1 nsid=$3 bs=$4 depth=$5 digests=$6 host=$7" \
		quiet_bench "$(uri "$2" "$3")" --rw randrw --mix 50 --bs "$4" --depth "$5" --size 16m --time $time \
		--verify --io "$7" $(digest_options "$6")
}

combinations_on() { # TARGET PORT: pairwise, or the full product
	local sizes=(512 4k 64k 1m) depths=(1 4 16 64) digests=(none header data both) ios=(uring epoll) i j d
	for i in 0 1 2 3; do for j in 0 1 2 3; do
		if [ -n "$long" ]; then
			for d in 0 1 2 3; do
				combination "$1" "$2" 1 "${sizes[i]}" "${depths[j]}" "${digests[d]}" uring
				combination "$1" "$2" 1 "${sizes[i]}" "${depths[j]}" "${digests[d]}" epoll
			done
		else
			combination "$1" "$2" $(((i > 0 && j % 2) + 1)) "${sizes[i]}" "${depths[j]}" "${digests[i ^ j]}" "${ios[(i + j / 2) % 2]}"
		fi
	done; done
}

suite_combinations() {
	local kind io port volumes
	for kind in memory file; do for io in uring epoll; do
		case $kind in
			memory) volumes=(mem:32M mem:32M,block-size=4096);;
			file) volumes=("$work/a-$io,size=32M" "$work/b-$io,size=32M,block-size=4096");;
		esac
		port=$(free_port)
		check "serve $kind volumes with $io" start_target "$kind-$io" "$port" "${volumes[@]}" --io "$io" || continue
		# Without --long each target takes its quarter of the rows, all on one core.
		combinations_on "$kind-$io" "$port"
		check "the $kind target with $io ends with status 0" end_target "$kind-$io" TERM
	done; done
}

# ---- copy -------------------------------------------------------------------------
there_and_back() { # URI: data, holes, data, through a volume and back
	head -c 5000192 /dev/urandom > "$work/there"
	truncate -s 24M "$work/there"
	head -c 1048576 /dev/urandom >> "$work/there"
	"$isolane" copy --verify "$work/there" "$1" || return 1
	rm -f "$work/back"; "$isolane" copy "$1" "$work/back" || return 1
	cmp -n "$(stat -c %s "$work/there")" "$work/there" "$work/back" || return 1
	[ "$(du -k "$work/back" | cut -f1)" -lt 12000 ] || { echo "holes were filled"; return 1; }
}
through_pipes() { # URI
	"$isolane" copy - "$1" < "$work/there" && "$isolane" copy "$1" - | cmp -n 10000000 "$work/there" -
}
between_volumes() {
	"$isolane" copy --verify "$(uri "$copy_port" 1)" "$(uri "$copy_port" 2)"
}
refuses_what_does_not_fit() {
	truncate -s 64M "$work/large"
	! "$isolane" copy "$work/large" "$(uri "$copy_port")"
}
check_copies() { # overwrites the two equal volumes of the target
	check "info" "$isolane" info "$(uri "$copy_port")"
	check "info as JSON" info_is_json
	check "copy there and back" there_and_back "$(uri "$copy_port")"
	check "copy through pipes" through_pipes "$(uri "$copy_port")"
	check "copy from volume to volume" between_volumes
	check "copy refuses what does not fit" refuses_what_does_not_fit
}
suite_copy() {
	copy_port=$(free_port)
	check "serve two files" start_target copy "$copy_port" "$work/one,size=32M" "$work/two,size=32M" || return
	check "discover" "$isolane" discover "nvme+tcp://127.0.0.1:$copy_port"
	check_copies
	check "the target of copies ends with status 0" end_target copy TERM
}
info_is_json() { "$isolane" info --json "$(uri "$copy_port")" | python3 -m json.tool; }

# ---- either end restarts at random ---------------------------------------------------
bench_through_restarts() { # TARGET PORT IO COUNT: restarts the target COUNT times under one bench
	local pid i signal
	: > "$work/bench.out"
	"$isolane" bench "$(uri "$2")" --rw randrw --mix 30 --bs 4k --depth 16 --lanes 2 --size 16m --time "$((2 * $4))s" \
		--verify --io "$3" --log-level info > "$work/bench.out" 2>&1 &
	pid=$!
	# A host retries only after its first connection has succeeded.
	wait_for 30 grep -q ': connected$' "$work/bench.out" || { kill -9 $pid; cat "$work/bench.out"; return 1; }
	for i in $(seq "$4"); do
		sleep "$((RANDOM % 2)).$((RANDOM % 10))"
		signal=KILL; [ $((i % 2)) = 0 ] || signal=TERM
		restart_target "$1" $signal || return 1
	done
	wait_for 60 has_ended $pid || { kill -9 $pid; echo "bench hangs"; cat "$work/bench.out"; return 1; }
	wait $pid || { tail -n 20 "$work/bench.out"; return 1; }
}
has_ended() { ! kill -0 "$1"; }
bench_killed_at_random() { # TARGET PORT IO COUNT: a target serves new hosts after others were killed
	local pid i
	for i in $(seq "$4"); do
		"$isolane" bench "$(uri "$2")" --rw randrw --bs 64k --depth 32 --size 16m --time 30s --verify --io "$3" > "$work/bench.out" 2>&1 &
		pid=$!
		sleep "0.$((RANDOM % 9 + 1))"
		kill -9 $pid; wait $pid 2>/dev/null
	done
	quiet_bench "$(uri "$2")" --rw randrw --bs 4k --depth 8 --size 16m --time 1s --verify --io "$3"
}
suite_restarts() {
	local io port count=3
	[ -z "$long" ] || count=30
	for io in uring epoll; do
		port=$(free_port)
		check "serve a file with $io for restarts" start_target "restarts-$io" "$port" "$work/r-$io,size=32M" --io $io || continue
		check "$count restarts of the target under bench --verify, $io" bench_through_restarts "restarts-$io" "$port" $io $count
		check "$count hosts killed under load, $io" bench_killed_at_random "restarts-$io" "$port" $io $count
		check "the restarted target with $io ends with status 0" end_target "restarts-$io" TERM
	done
}

# ---- kill -9 loses nothing durable ---------------------------------------------------
killed_under_load() { # TARGET PORT COUNT
	local pid i
	rm -f "$work/journal"
	for i in $(seq "$3"); do
		# An earlier round must not satisfy the wait below.
		: > "$work/durable.out"
		"$durable" write "$(uri "$2")" --journal "$work/journal" --seconds 30 > "$work/durable.out" 2>&1 &
		pid=$!
		wait_for 30 grep -q ' begins$' "$work/durable.out" || { kill -9 $pid; cat "$work/durable.out"; return 1; }
		sleep "0.$((RANDOM % 9 + 2))"
		restart_target "$1" KILL || return 1
		wait $pid || { cat "$work/durable.out"; return 1; }
		grep ' operations ' "$work/durable.out"
		"$durable" check "$(uri "$2")" --journal "$work/journal" || { echo "after kill $i"; return 1; }
	done
}
suite_killed() {
	local io port count=4
	[ -z "$long" ] || count=60
	for io in uring epoll; do
		port=$(free_port)
		check "serve a file with $io to be killed" start_target "killed-$io" "$port" "$work/k-$io,size=8M" --io $io || continue
		check "$count times kill -9 with $io loses nothing durable" killed_under_load "killed-$io" "$port" $count
		end_target "killed-$io" TERM
	done
}

# ---- through an isolated engine ------------------------------------------------------
engine_bench() { # PORT NSID OPTION...
	exec "$isolane" --log-level warn bench "$(uri "$1" "$2")" "${@:3}"
}
verified() { (engine_bench "$1" "$2" --rw randrw --mix 50 --verify "${engine_options[@]}" "${@:3}"); }
client() { # NAME COMMAND...: in the background; ends with the suite
	"${@:2}" > "$work/client-$1" 2>&1 &
	target_pid[client-$1]=$!
}
end_client() { # NAME SECONDS: waits, returns the exit status
	local pid=${target_pid[client-$1]} status
	wait_for "$2" has_ended "$pid" || { echo "$1 hangs:"; cat "$work/client-$1"; return 1; }
	unset "target_pid[client-$1]"
	wait "$pid"; status=$?
	cat "$work/client-$1"
	return $status
}

start_engine() { # NAME OPTION...: on $work/NAME.sock; ends with the suite
	local name=$1; shift
	: > "$logs/engine-$name.out"
	"$isolane" engine --socket "$work/$name.sock" "$@" < /dev/null > "$logs/engine-$name.out" 2>> "$logs/engine-$name.log" &
	target_pid[engine-$name]=$!
	via="&via=$work/$name.sock"
	wait_for 30 grep -q '^listening on ' "$logs/engine-$name.out" && return 0
	echo "engine $name does not listen; its log ends:"; tail -n 20 "$logs/engine-$name.log"
	return 1
}
engine_child() { # NAME: PID of the child that the supervisor runs now
	local supervisor=${target_pid[engine-$1]} children
	children=$(< "/proc/$supervisor/task/$supervisor/children") && [ -n "$children" ] && echo "${children%% *}"
}
is_replaced() { # NAME PID
	local now
	now=$(engine_child "$1") && [ "$now" != "$2" ]
}
kill_engine() { # NAME
	local pid
	wait_for 30 engine_child "$1" && pid=$(engine_child "$1") && kill -9 "$pid" || { echo "no engine runs"; return 1; }
	wait_for 30 is_replaced "$1" "$pid" || { echo "the engine is not replaced"; return 1; }
}
upgrade_engine() { # NAME
	local pid
	pid=$(engine_child "$1") && kill -HUP "${target_pid[engine-$1]}"
	wait_for 30 is_replaced "$1" "$pid" || { echo "SIGHUP does not replace the engine"; return 1; }
}

engine_combinations() { # PORT: pairwise, by two Latin squares, or the full product; volumes 1 to 4
	local sizes=(512 4k 64k 1m) depths=(1 4 16 64) digests=(none header data both) i j d v
	local regions=(1m 4m 16m 16m) twice=(0 2 3 1) time=0.5s
	[ -z "$long" ] || time=2s
	for i in 0 1 2 3; do for j in 0 1 2 3; do for d in 0 1 2 3; do for v in 0 1 2 3; do
		[ -n "$long" ] || [ "$d $v" = "$((i ^ j)) $((i ^ twice[j]))" ] || continue
		# Volumes 2 and 4 have blocks of 4096 bytes.
		[ $i != 0 ] || v=$((v & 2))
		# shellcheck disable=SC2046
		check "bench --verify through the engine nsid=$((v + 1)) bs=${sizes[i]} depth=${depths[j]} digests=${digests[d]}" \
			verified "$1" $((v + 1)) --bs "${sizes[i]}" --depth "${depths[j]}" --size "${regions[i]}" --time $time $(digest_options "${digests[d]}")
	done; done; done; done
}
together() { # PORT: processes that share lanes and processes that do not, in parallel
	local name failed=0
	for name in 1 2 3 4; do client $name verified "$1" $name --bs 8k --depth 8 --size 16m --time 2s; done
	for name in 5 6 7; do client $name engine_bench "$1" 1 --rw randread --bs 4k --depth 8 --time 2s "${engine_options[@]}"; done
	client 8 engine_bench "$1" 3 --threads 3 --rw randread --bs 4k --depth 8 --time 2s
	for name in 1 2 3 4 5 6 7 8; do end_client $name 60 || failed=$((failed + 1)); done
	[ $failed = 0 ] || { echo "$failed of 8 failed"; return 1; }
}
while_it_dies() { # NAME PORT COUNT HOW: two processes verify meanwhile, without an error
	local i time=$((4 * $3 + 10)) failed=0
	client first verified "$2" 1 --bs 4k --depth 16 --size 16m --time ${time}s
	client second verified "$2" 4 --bs 64k --depth 4 --size 16m -G --time ${time}s
	for i in $(seq "$3"); do
		# The supervisor delays the successor of an engine that ran for less than a second.
		sleep "1.$((RANDOM % 10))"
		"$4" "$1" || return 1
		# Sometimes again immediately, while the next engine starts.
		[ $((i % 5)) != 0 ] || "$4" "$1" || return 1
	done
	kill -0 "${target_pid[client-first]}" && kill -0 "${target_pid[client-second]}" || { echo "bench ended too early"; failed=1; }
	end_client first $((time + 60)) && end_client second 60 && [ $failed = 0 ]
}
without_supervisor() { # NAME PORT: clients end with an error, and the engine ends
	local engine name failed=0
	client first verified "$2" 1 --bs 4k --depth 16 --size 16m --time 60s
	client second engine_bench "$2" 2 --threads 2 --rw randrw --bs 4k --depth 8 --time 60s
	client third engine_bench "$2" 3 --rw write --bs 1m --depth 2 --size 16m --mode poll --time 60s
	sleep 1
	engine=$(engine_child "$1") && end_target "engine-$1" KILL
	for name in first second third; do
		end_client $name 30
		[ $? = 1 ] && grep -q 'isolane: .*engine' "$work/client-$name" || { echo "$name ended with another status or message"; failed=1; }
	done
	wait_for 10 has_ended "$engine" && [ $failed = 0 ]
}
on_demand() { # PORT: a command starts the engine if none runs
	local supervisor status
	export XDG_RUNTIME_DIR=$work/run ISOLANE_BIN=$isolane
	mkdir -p -m 700 "$XDG_RUNTIME_DIR"
	via='&via=engine'
	verified "$1" 1 --bs 4k --depth 4 --size 4m --time 0.2s && there_and_back "$(uri "$1" 3)"; status=$?
	supervisor=$(pgrep -f -- "--socket $XDG_RUNTIME_DIR/isolane/engine.sock.*--detached\$") || { echo "no engine runs"; return 1; }
	kill -TERM "$supervisor"
	wait_for 10 has_ended "$supervisor" && return $status
}
suite_engine() {
	local port count=5
	[ -z "$long" ] || count=100
	port=$(free_port) copy_port=$port
	check "serve volumes for an engine" start_target engine "$port" mem:32M mem:32M,block-size=4096 \
		"$work/e,size=32M" "$work/f,size=32M,block-size=4096" || return
	check "an engine listens" start_engine e || return
	engine_combinations "$port"
	check "eight processes at the same time" together "$port"
	check_copies
	check "$count times kill -9 of the engine under bench --verify" while_it_dies e "$port" $count kill_engine
	check "$((count / 2)) times SIGHUP under bench --verify" while_it_dies e "$port" $((count / 2)) upgrade_engine
	check "kill -9 of the supervisor: clients end with an error" without_supervisor e "$port"
	check "a new engine starts" start_engine e
	check "the new engine serves" verified "$port" 1 --bs 4k --depth 16 --size 16m --time 0.2s
	check "the engine ends with status 0" end_target engine-e TERM
	check "an engine is started on demand" on_demand "$port"
	check "the target of engines ends with status 0" end_target engine TERM
}

rm -f "$logs/$run"-*.results
for suite in "${wanted[@]}"; do
	(trap end_targets EXIT; "suite_$suite") 2>&1 | tee "$logs/$run-$suite.results" | sed -u "s,^,[$run/$suite] ,"
done
tally "$logs/$run"-*.results
