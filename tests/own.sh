#!/bin/bash
# own.sh [--long] [--switched] [SUITE...] - Isolane's host against Isolane's target, as programs.
#
# Suites: combinations (bench --verify over block sizes, depths, digests, I/O engines and
# volumes), copy, restarts (both ends end and come back at random), killed (kill -9: nothing
# acknowledged as durable is lost).  --switched: with the switches the other way than by default.
# The closing line is `N passed, N failed`.
set -u
. "$(dirname "$0")/lib.sh"

long= run=own host_options=()
[ "${1-}" = --long ] && { long=1; shift; }
if [ "${1-}" = --switched ]; then
	shift; run=switched
	serve_options=(--scheduling off --scheduler dynamic --placement round-robin --zero-copy-above 0 --mode sleep)
	host_options=(--lanes 2 --read-lanes 1 --poll-lanes 1 --spread --hold --mode sleep)
fi
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(combinations copy restarts killed)

uri() { echo "nvme+tcp://127.0.0.1:$1/$nqn?nsid=${2:-1}"; }
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
	[ "$(du -k "$work/back" | cut -f1)" -lt 12000 ] || { echo "the holes were filled"; return 1; }
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
suite_copy() {
	copy_port=$(free_port)
	check "serve two files" start_target copy "$copy_port" "$work/one,size=32M" "$work/two,size=32M" || return
	check "discover" "$isolane" discover "nvme+tcp://127.0.0.1:$copy_port"
	check "info" "$isolane" info "$(uri "$copy_port")"
	check "info as JSON" info_is_json
	check "copy there and back" there_and_back "$(uri "$copy_port")"
	check "copy through pipes" through_pipes "$(uri "$copy_port")"
	check "copy from volume to volume" between_volumes
	check "copy refuses what does not fit" refuses_what_does_not_fit
	check "the target of copies ends with status 0" end_target copy TERM
}
info_is_json() { "$isolane" info --json "$(uri "$copy_port")" | python3 -m json.tool; }

# ---- both ends restart at random ---------------------------------------------------
bench_through_restarts() { # TARGET PORT IO COUNT: the target goes away COUNT times under one bench
	local pid i signal
	"$isolane" bench "$(uri "$2")" --rw randrw --mix 30 --bs 4k --depth 16 --lanes 2 --size 16m --time "$((2 * $4))s" \
		--verify --io "$3" > "$work/bench.out" 2>&1 &
	pid=$!
	# The first connection is not tried again: only what is connected outlives a target.
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
bench_killed_at_random() { # TARGET PORT IO COUNT: hosts that vanish leave a target that serves the next one
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
	rm -f "$work/ledger"
	for i in $(seq "$3"); do
		"$durable" write "$(uri "$2")" --ledger "$work/ledger" --seconds 30 > "$work/durable.out" 2>&1 &
		pid=$!
		wait_for 30 grep -q ' begins$' "$work/durable.out" || { kill -9 $pid; cat "$work/durable.out"; return 1; }
		sleep "0.$((RANDOM % 9 + 2))"
		restart_target "$1" KILL || return 1
		wait $pid || { cat "$work/durable.out"; return 1; }
		grep ' operations ' "$work/durable.out"
		"$durable" check "$(uri "$2")" --ledger "$work/ledger" || { echo "after kill $i"; return 1; }
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

rm -f "$logs/$run"-*.results
for suite in "${wanted[@]}"; do
	(trap end_targets EXIT; "suite_$suite") 2>&1 | tee "$logs/$run-$suite.results" | sed -u "s,^,[$run/$suite] ,"
done
tally "$logs/$run"-*.results
