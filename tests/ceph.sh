#!/bin/bash
# ceph.sh [--long] [SUITE...] - Ceph RBD volumes of the target, on a real cluster on loopback.
#
# Suites: volumes (reads, writes, snapshots, stripes and mirrors of images), errors (of the start), space (a quota that
# is used up, resized images), fenced (a lock that was broken, an invalid key), killed (kill -9 of the target loses
# nothing durable), away (the target ends while the cluster does not respond), and with --long restarts (of the monitor
# and of OSDs under bench --verify). The closing line is `N passed, N failed`.
set -u
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/ceph-cluster.sh"

long=
[ "${1-}" = --long ] && { long=1; shift; }
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(volumes errors space fenced killed away ${long:+restarts})

uri() { echo "nvme+tcp://127.0.0.1:$port/$nqn?nsid=${1:-1}"; }
image() { echo "rbd:rbd/$1,conf=$CEPH_CONF"; }
# NSID OPTION...: in the background; `end_bench` waits for it
start_bench() {
	: > "$work/bench.out"    # an earlier one has connected
	"$isolane" bench "$(uri "$1")" --bs 4k --depth 16 --verify --size 16m --log-level info "${@:2}" \
		> "$work/bench.out" 2>&1 &
	target_pid[bench]=$!
	wait_for 30 grep -q ': connected$' "$work/bench.out" || { cat "$work/bench.out"; return 1; }
}
end_bench() { # SECONDS: returns its exit status
	local pid=${target_pid[bench]}
	wait_for "$1" has_ended "$pid" || { echo "bench hangs"; cat "$work/bench.out"; return 1; }
	unset 'target_pid[bench]'
	wait "$pid" || { tail -n 20 "$work/bench.out"; return 1; }
}
has_ended() { ! kill -0 "$1"; }
verified() { # NSID OPTION...
	"$isolane" --log-level warn bench "$(uri "$1")" --rw randrw --mix 50 --verify --size 16m --time 0.5s "${@:2}"
}
# TEXT: in the log of the target that runs
logged() { grep -q -- "$1" "$logs/target-$served.log"; }
logs_within() { # SECONDS TEXT
	wait_for "$1" logged "$2" && return 0
	echo "the log has no line with: $2"; tail -n 20 "$logs/target-$served.log"; return 1
}
start() { # NAME VOLUME...: the target that the other functions mean
	served=$1 port=$(free_port)
	: > "$logs/target-$served.log"
	start_target "$served" "$port" "${@:2}" --control-socket "$work/control.sock"
}
control() { "$isolane" ctl --socket "$work/control.sock" "$@"; }
end() { end_target "$served" TERM; }

# ---- volumes ------------------------------------------------------------------------
there_and_back() { # NSID
	head -c 9000448 /dev/urandom > "$work/there"
	"$isolane" copy --verify "$work/there" "$(uri "$1")" || return 1
	rm -f "$work/back"; "$isolane" copy "$(uri "$1")" "$work/back" || return 1
	cmp -n 9000448 "$work/there" "$work/back"
}
rbd_has_copy() { rbd export "rbd/$1" - | cmp -n 9000448 - "$work/there"; }
snapshot_has() { # the data of its time, after the image was overwritten
	rm -f "$work/back"; "$isolane" copy "$(uri 1)" "$work/back" && cmp -n 9000448 "$work/there" "$work/back"
}
rejects_write() { # NSID
	! "$isolane" bench "$(uri "$1")" --rw write --bs 4k --depth 1 --time 0.1s
}
connections() { # of the target, named after a thread that each has
	grep -lx rbd-images "/proc/${target_pid[$served]}/task"/*/comm | wc -l
}
reads_in_c() { # VOLUME: and writes, in batches
	cc -std=c11 "$tests/../crates/isolane-capi/examples/kv_cache.c" -I "$tests/../crates/isolane-capi/include" \
		"$(dirname "$isolane")/libisolane.a" -lgcc_s -lm -lpthread -ldl -o "$work/kv_cache" &&
		"$work/kv_cache" "$1" | grep '^64 blocks of 64 KiB in '
}
suite_volumes() {
	local bs count
	for count in v1 v2 v3 v4 m1 m2 c1 c2; do rbd create --size 64M "rbd/$count" || return 1; done
	rbd namespace create rbd/space && rbd create --size 64M rbd/space/v1
	check "serve images, a stripe, a mirror, and an image of a namespace" start volumes "$(image v1)" \
		"stripe:64k:($(image v2));($(image v3))" "mirror:($(image m1));($(image m2)),bitmap=$work/bitmap,create=yes" \
		"$(image space/v1),id=admin,keyring=$cluster/client.admin.keyring" --rbd-images-per-connection 3 || return
	check "3 connections serve 6 images" [ "$(connections)" = 3 ]
	for bs in 512 4k 64k 1m; do
		check "bench --verify on an image, bs=$bs" verified 1 --bs $bs --depth 16 -G
	done
	check "bench --verify on a stripe" verified 2 --bs 256k --depth 8
	check "bench --verify on a mirror" verified 3 --bs 16k --depth 8
	check "bench --verify in a namespace" verified 4 --bs 4k --depth 64
	check "copy there and back" there_and_back 1
	check "rbd export reads the same data" rbd_has_copy v1
	check "a snapshot" rbd snap create rbd/v1@then
	check "bench --verify after the snapshot" verified 1 --bs 64k --depth 8
	check "the target ends with status 0" end
	check "serve the snapshot" start snapshot "$(image v1@then)" || return
	check "the snapshot has the data of its time" snapshot_has
	check "the snapshot rejects writes" rejects_write 1
	check "the target of the snapshot ends with status 0" end
	check "a C program reads batches of an image" reads_in_c "$(image c1)"
	check "a C program reads batches of a stripe of images" reads_in_c "stripe:64k:($(image c1));($(image c2))"
}

# ---- errors of the start ---------------------------------------------------------------
fails_with() { # VOLUME TEXT...: one line, with each text
	local volume=$1 out text; shift
	out=$("$isolane" --log-level warn serve "$volume" --listen 127.0.0.1:0 2>&1) && { echo "no error"; return 1; }
	echo "$out"
	[ "$(wc -l <<< "$out")" = 1 ] || return 1
	for text; do [[ $out == *"$text"* ]] || { echo "does not have: $text"; return 1; }; done
}
has_no_blocks() { rbd create --size 0 rbd/none && fails_with "$(image none)" "it has 0 bytes"; }
suite_errors() {
	local conf=$work/away.conf
	rbd create --size 64M rbd/held
	check "error of a missing image" fails_with "$(image missing)" "monitors [v2:127.0.0.1:" "user client.admin" \
		"pool rbd" "image missing" "No such file" "rbd ls rbd"
	check "error of a missing namespace" fails_with "rbd:rbd/none/v,conf=$CEPH_CONF" "rbd namespace ls rbd" "rbd ls rbd/none"
	check "error of a directory" fails_with "rbd:rbd/held,conf=$work" "$work: is a directory"
	check "error of an image that is given twice" fails_with "stripe:64k:($(image held));($(image held))" \
		"this program already serves the image"
	check "error of an image without blocks" has_no_blocks
	check "error of a missing pool" fails_with "rbd:other/v,conf=$CEPH_CONF" "pool other" "open the pool" "osd pool ls"
	check "error of a missing snapshot" fails_with "$(image held@none)" "snapshot none" "rbd snap ls"
	check "error of a user without a key" fails_with "$(image held),id=nobody" "user client.nobody" "check id= and keyring=, and"
	check "error of a missing keyring" fails_with "$(image held),keyring=$work/none" "$work/none: No such file"
	check "error of a missing configuration" fails_with "rbd:rbd/held,conf=$work/none" "$work/none" "conf=FILE"
	check "error of a name" fails_with "rbd:held" "no image" "rbd:POOL/IMAGE"
	sed 's/^mon host.*/mon host = [v2:127.0.0.1:9\/0]\nclient mount timeout = 1/' "$CEPH_CONF" > "$conf"
	check "error of monitors that do not respond" fails_with "rbd:rbd/held,conf=$conf" "monitors [v2:127.0.0.1:9/0]" \
		"cannot connect" "check that the monitors run"
	check "serve an image that others want" start held "$(image held)" || return
	check "error of an image that another client has" fails_with "$(image held)" "take the lock" "stop client."
	check "read-only, it needs no lock" fails_with "$(image held),ro,nsid=0" "namespace ID"
	check "the target of the image ends with status 0" end
}

# ---- space ---------------------------------------------------------------------------
set_quota() { ceph osd pool set-quota small max_bytes "$1"; }
pool_is_full() { ceph osd dump | grep "^pool .* 'small' " | grep -q "[ ,]full[ ,]"; }
other_volume_works() { verified 2 --bs 4k --depth 4 && verified 3 --bs 4k --depth 4; }
larger_size() { # NSID BYTES
	control namespace resize "$1" && "$isolane" info --json "$(uri "$1")" | grep -q "\b$2\b"
}
suite_space() {
	ceph osd pool create small 8 && rbd pool init small && rbd create --size 64M small/v && rbd create --size 64M rbd/free
	check "serve an image of a pool with a quota" start space "rbd:small/v,conf=$CEPH_CONF" "$(image free)" mem:32M || return
	check "fill a part" verified 1 --bs 64k --depth 4
	check "set a quota that is used up" set_quota 1000000
	check "the cluster notices it" wait_for 120 pool_is_full    # its statistics arrive every few seconds
	check "start a load" start_bench 1 --time 8s --rw randwrite
	check "the log names the full pool" logs_within 90 "pool small is full"
	check "the other volumes work" other_volume_works
	check "no write has failed" kill -0 "${target_pid[bench]}"
	check "remove the quota" set_quota 0
	check "the log has the end" logs_within 90 "pool small has space again"
	check "no write failed, none is lost" end_bench 60
	rbd resize --size 80M rbd/free
	check "the log has the larger size" logs_within 30 "the image has 83886080 bytes, was 67108864"
	check "hosts get the larger size" larger_size 2 83886080
	check "the target ends with status 0" end
}

# ---- fenced ----------------------------------------------------------------------------
break_lock() { # IMAGE: by another client, which blocklists the target
	local locker id
	read -r locker id < <(rbd lock ls "rbd/$1" --format json | python3 -c 'import json, sys
lock = json.load(sys.stdin)[0]
print(lock["locker"], lock["id"])')
	rbd lock rm "rbd/$1" "$id" "$locker"
}
writes_fail() { ! verified 1 --bs 4k --depth 1; }
suite_fenced() {
	rbd create --size 64M rbd/fenced
	check "serve an image that is fenced" start fenced "$(image fenced)" || return
	check "bench --verify before" verified 1 --bs 4k --depth 4
	check "another client breaks the lock" break_lock fenced
	check "the log has the loss" logs_within 60 "lost the lock of its image"
	check "changes fail" writes_fail
	check "the target ends with status 1" ends_with_failure
	check "the image is served again" start fenced "$(image fenced)" || return
	check "bench --verify after" verified 1 --bs 4k --depth 4
	check "the target ends with status 0" end
}
ends_with_failure() { end; [ $? = 1 ]; }

# ---- killed ------------------------------------------------------------------------------
killed_under_load() { # COUNT
	local pid i
	rm -f "$work/journal"
	for i in $(seq "$1"); do
		: > "$work/durable.out"
		"$durable" write "$(uri)" --journal "$work/journal" --seconds 60 > "$work/durable.out" 2>&1 &
		pid=$!
		wait_for 30 grep -q ' begins$' "$work/durable.out" || { kill -9 $pid; cat "$work/durable.out"; return 1; }
		sleep "0.$((RANDOM % 9 + 2))"
		restart_target "$served" KILL || return 1
		wait $pid || { cat "$work/durable.out"; return 1; }
		"$durable" check "$(uri)" --journal "$work/journal" || { echo "after kill $i"; return 1; }
	done
}
has_cache() { "$isolane" info "$(uri)" --json | grep -q '"volatile_cache": *true'; }
suite_killed() {
	local count=1
	[ -z "$long" ] || count=20
	rbd create --size 8M rbd/killed
	check "serve an image to be killed" start killed "$(image killed)" || return
	check "$count times kill -9 loses nothing durable" killed_under_load $count
	check "the target ends with status 0" end
	rbd create --size 64M rbd/cached && rbd config image set rbd/cached rbd_cache 1
	check "serve an image with a cache" start cached "$(image cached)" || return
	check "hosts see the cache" has_cache
	check "bench --verify with a cache" verified 1 --bs 4k --depth 4
	check "the target with a cache ends with status 0" end
}

# ---- away --------------------------------------------------------------------------------
pause_cluster() { kill "-$1" "${daemon_pid[@]}"; }
suite_away() {
	rbd create --size 64M rbd/away
	check "serve an image of a cluster that goes away" start away "$(image away)" mem:32M || return
	check "start a load" start_bench 1 --rw randrw --time 4s
	check "the cluster does not respond" pause_cluster STOP
	check "the log names the monitors" logs_within 60 "do not respond"
	check "the other volume works" verified 2 --bs 4k --depth 4
	check "the cluster responds" pause_cluster CONT
	check "no command failed" end_bench 90
	check "start another load" start_bench 1 --rw randrw --time 60s
	check "the cluster does not respond again" pause_cluster STOP
	check "the log names commands that wait" logs_within 60 "commands are older than"
	check "the target ends with status 1" ends_with_failure
	kill -9 "${target_pid[bench]}"; unset 'target_pid[bench]'
	pause_cluster CONT
}

# ---- restarts ----------------------------------------------------------------------------
restart_daemons() { # COUNT
	local i
	for i in $(seq "$1"); do
		end_daemon mon.a KILL && sleep 1 && start_daemon mon a
		end_daemon "osd.$((i % 2))" TERM && sleep 1 && start_daemon osd $((i % 2))
		wait_for 120 osds_are_up || { echo "the OSDs are not up after restart $i"; return 1; }
	done
}
suite_restarts() {
	rbd create --size 64M rbd/restarts
	check "serve an image for restarts" start restarts "$(image restarts)" || return
	check "start a load" start_bench 1 --rw randrw --time 120s
	check "10 restarts of the monitor and of OSDs" restart_daemons 10
	check "no command failed" end_bench 240
	check "the target ends with status 0" end
}

end_all() { end_cluster; end_targets; }
make_cluster() {
	start_cluster "$work/cluster" && ceph osd pool create rbd 8 && rbd pool init rbd
}
rm -f "$logs"/ceph-*.results
( # with the cluster, whose processes end with this shell
	trap end_all EXIT
	check "a cluster starts" make_cluster || exit
	for suite in "${wanted[@]}"; do "suite_$suite"; done
) 2>&1 | tee "$logs/ceph-all.results" | sed -u 's,^,[ceph] ,'
tally "$logs"/ceph-*.results
