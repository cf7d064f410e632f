#!/bin/bash
# spdk.sh [--long] [SPDK_DIR] [SUITE...] - SPDK's own tools against Isolane's target, and
# Isolane's host against SPDK's target.
#
# SPDK_DIR is a built SPDK (`./configure && make`); without it the script skips with status 0.
# SPDK needs root and about 1 GiB of free huge pages.  Suites: identify, perf, compliance, fuzz
# (four random seeds), bdevperf (verification through reset and reconnect), host (ours), and auth
# (both directions; with --long each hash function with each group).
# Each tool also runs once with its own defaults.  The closing line is `N passed, N failed`.
set -u
. "$(dirname "$0")/lib.sh"

long= run=spdk
[ "${1-}" = --long ] && { long=1; shift; }
spdk=${1:-${SPDK_DIR-}}
wanted=("${@:2}")
[ ${#wanted[@]} -gt 0 ] || wanted=(identify perf compliance fuzz bdevperf host auth)

skip() { echo "skipped: $1"; exit 0; }
huge_free_mib() { awk '/^HugePages_Free/ {n = $2} /^Hugepagesize/ {k = $2} END {print int(n * k / 1024)}' /proc/meminfo; }
[ -n "$spdk" ] || skip "no SPDK_DIR: build SPDK and name its directory"
[ "$(id -u)" = 0 ] || skip "SPDK's tools need root"
[ "$(huge_free_mib)" -ge 1024 ] || skip "fewer than 1 GiB of free huge pages; raise vm.nr_hugepages"
for tool in build/bin/{spdk_nvme_identify,spdk_nvme_perf,nvmf_tgt} build/examples/bdevperf \
	test/app/fuzz/nvme_fuzz/nvme_fuzz test/nvme/compliance/nvme_compliance scripts/rpc.py; do
	[ -x "$spdk/$tool" ] || skip "$spdk/$tool is missing; build SPDK with its tests and examples"
done

trid() { echo "trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:$1 subnqn:$nqn"; }
rpc() { python3 "$spdk/scripts/rpc.py" -s "$work/$1.sock" "${@:2}"; }
has_ended() { ! kill -0 "$1"; }

# SPDK reports these about itself: perf polls a queue pair that it has just disconnected, and the
# test of the most queues asks for one more than there are.
expected='CQ transport error -6 .*\|No free I/O queue IDs'
run_clean() { # COMMAND...: succeeds if the command does and prints no other error line
	timeout -k 5 120 "$@" > "$work/tool.out" 2>&1
	local status=$?
	cat "$work/tool.out"
	[ $status = 0 ] || { echo "status $status"; return 1; }
	! grep '\*ERROR\*' "$work/tool.out" | grep -v "$expected"
}
serve_options=(--log-level debug)   # logs each shutdown
shutdowns() { grep -c 'shut down by its host' "$logs/target-$1.log"; }
has_shut_down() { [ "$(shutdowns "$1")" -gt "$2" ]; }
shuts_down() { # TARGET COMMAND...: the same, and the target receives a shutdown
	local before; before=$(shutdowns "$1")
	run_clean "${@:2}" || return 1
	wait_for 10 has_shut_down "$1" "$before" || { echo "the target received no shutdown"; return 1; }
}

# ---- identify, perf, compliance ------------------------------------------------------
suite_identify() {
	port=$(free_port)
	check "serve for identify" start_target spdk-identify "$port" mem:64M mem:64M,block-size=4096 || return
	check "identify" shuts_down spdk-identify "$spdk/build/bin/spdk_nvme_identify" -r "$(trid "$port")"
	check "identify the discovery service" run_clean "$spdk/build/bin/spdk_nvme_identify" \
		-r "trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:$port"
	check "the target of identify ends with status 0" end_target spdk-identify TERM
}

perf_rate() { # TARGET [HOSTNQN] OPTION...: perf moves data; without HOSTNQN it sends an empty one
	local id=
	case $2 in nqn.*) id=" hostnqn:$2"; set -- "$1" "${@:3}";; esac
	shuts_down "$1" "$spdk/build/bin/spdk_nvme_perf" -s 512 -r "$(trid "$port")$id" "${@:2}" || return 1
	awk '/^Total/ && $3 > 0 {found = 1} END {exit !found}' "$work/tool.out" || { echo "no data moved"; return 1; }
}
suite_perf() {
	local io time=2 host=nqn.2014-08.org.nvmexpress:uuid:25025025-0000-4000-8000-000000000001
	[ -z "$long" ] || time=20
	for io in uring epoll; do
		port=$(free_port)
		check "serve for perf with $io" start_target "spdk-perf-$io" "$port" mem:128M "$work/perf-$io,size=128M" --io $io || return
		check "perf with its defaults, $io" perf_rate "spdk-perf-$io" -q 128 -o 4096 -w randrw -M 50 -t $time
		check "perf 128 KiB with digests, $io" perf_rate "spdk-perf-$io" "$host" -q 16 -o 131072 -w randrw -M 50 -t $time -H -I
		check "perf 512 B on 4 queue pairs, $io" perf_rate "spdk-perf-$io" "$host" -q 32 -P 4 -o 512 -w randwrite -t $time
		check "perf 1 MiB reads, $io" perf_rate "spdk-perf-$io" "$host" -q 8 -o 1048576 -w read -t $time
		check "the target of perf with $io ends with status 0" end_target "spdk-perf-$io" TERM
	done
}

# The other tests of the suite create and delete queues with the commands of PCIe.
compliance_tests=(admin_identify_ctrlr_verify_dptr admin_identify_ctrlr_verify_fused admin_identify_ns
	admin_get_features_mandatory_features admin_get_features_optional_features
	admin_set_features_number_of_queues admin_get_log_page_mandatory_logs admin_get_log_page_with_lpo
	fabric_property_get admin_create_io_qp_max_qps)
compliance() { # TEST
	shuts_down spdk-compliance "$spdk/test/nvme/compliance/nvme_compliance" -t "$1" -r "$(trid "$port")" || return 1
	grep -q '\.\.\.passed\|^passed' "$work/tool.out" || { echo "it did not run"; return 1; }
}
suite_compliance() {
	local name
	port=$(free_port)
	check "serve for compliance" start_target spdk-compliance "$port" mem:64M || return
	for name in "${compliance_tests[@]}"; do check "compliance $name" compliance "$name"; done
	check "the target of compliance ends with status 0" end_target spdk-compliance TERM
}

# ---- fuzz ------------------------------------------------------------------------------
fuzz_ran() { # the tool ends with status 0 also when it refuses to run or a command never completes
	grep -q '^Fuzzing completed' "$work/tool.out" && grep -q 'commands completed: [1-9]' "$work/tool.out" &&
		! grep -q 'timed out' "$work/tool.out"
}
survives_fuzz() { # SEED SECONDS: every command completes, and the target still serves
	# -U: no device does DMA here, so no IOMMU is needed.
	timeout -k 5 $(($2 + 60)) "$spdk/test/app/fuzz/nvme_fuzz/nvme_fuzz" -S "$1" -t "$2" -F "$(trid "$port")" -N -a -U \
		--disable-cpumask-locks -r "$work/fuzz.sock" > "$work/tool.out" 2>&1 && fuzz_ran || { tail -n 30 "$work/tool.out"; return 1; }
	"$isolane" --log-level warn bench "nvme+tcp://127.0.0.1:$port/$nqn" --rw randrw --bs 4k --depth 8 --size 16m --time 1s --verify
}
suite_fuzz() { # one namespace: with two the tool never ends, against SPDK's target neither
	local time=5 i seed kind volume
	[ -z "$long" ] || time=60
	for kind in memory file; do
		port=$(free_port) volume=mem:64M
		[ $kind = memory ] || volume=$work/fuzz,size=64M
		check "serve a $kind volume for fuzz" start_target spdk-fuzz "$port" "$volume" || return
		for i in 1 2; do
			seed=$((RANDOM * 32768 + RANDOM))
			check "fuzz a $kind volume with seed $seed" survives_fuzz $seed $time
		done
		check "the target of fuzz ends with status 0" end_target spdk-fuzz TERM
	done
}

# ---- bdevperf ---------------------------------------------------------------------------
bdev_configuration() { # PORT: a bdev that reconnects forever, once a second
	cat <<-J
	{"subsystems": [{"subsystem": "bdev", "config": [{"method": "bdev_nvme_attach_controller", "params": {
	 "name": "Nvme0", "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "$1", "subnqn": "$nqn",
	 "ctrlr_loss_timeout_sec": -1, "reconnect_delay_sec": 1}}]}]}
	J
}
bdevperf=("$spdk/build/examples/bdevperf" --json "$work/bdev.json" --disable-cpumask-locks -r "$work/bdevperf.sock")
end_old_bdevperf() { # one of a check that has failed
	[ -z "${target_pid[bdevperf]-}" ] || end_target bdevperf KILL
}
start_bdevperf() { # OPTION...: in the background; returns once I/O is in flight
	end_old_bdevperf
	"${bdevperf[@]}" "$@" > "$work/bdevperf.out" 2>&1 &
	target_pid[bdevperf]=$!
	wait_for 60 rpc bdevperf bdev_get_bdevs -b Nvme0n1 || { cat "$work/bdevperf.out"; return 1; }
	sleep 1
}
end_bdevperf() { # [FAILURES]: waits for the end; data moved, none is wrong, and no I/O failed unless FAILURES may
	local pid=${target_pid[bdevperf]}
	wait_for 120 has_ended "$pid" || { echo "bdevperf hangs"; cat "$work/bdevperf.out"; return 1; }
	unset "target_pid[bdevperf]"
	wait "$pid" || { echo "status $?"; tail -n 40 "$work/bdevperf.out"; return 1; }
	tail -n 12 "$work/bdevperf.out"
	! grep 'Buffer mismatch' "$work/bdevperf.out" || return 1
	# Runtime, IOPS, MiB/s, failures a second, timeouts a second of the job's line.
	awk -v may_fail="${1:+1}" '/^[ \t]*Nvme0n1 *:/ {found = $4 > 0 && (may_fail || $6 == 0) && $7 == 0} END {exit !found}' \
		"$work/bdevperf.out" || { echo "some I/O failed, or none ran"; return 1; }
}
run_bdevperf() { # OPTION...: to its end
	end_old_bdevperf
	"${bdevperf[@]}" "$@" > "$work/bdevperf.out" 2>&1 &
	target_pid[bdevperf]=$!
	end_bdevperf
}
stop_bdevperf() { # [FAILURES]: ends the run, which then waits for its I/O
	kill "${target_pid[bdevperf]}" && end_bdevperf "$@"
}
resets_under_verify() { # COUNT: SPDK fails what is in flight when its user asks for a reset
	local i
	start_bdevperf -q 64 -o 4096 -w verify -f -t 3600 || return 1
	for i in $(seq "$1"); do rpc bdevperf bdev_nvme_reset_controller Nvme0 || { echo "reset $i failed"; return 1; }; done
	stop_bdevperf failures
}
reconnects_under_verify() { # COUNT: the target goes away and comes back
	local i
	start_bdevperf -q 64 -o 4096 -w verify -t 3600 || return 1
	for i in $(seq "$1"); do
		restart_target spdk-bdevperf "$([ $((i % 2)) = 0 ] && echo KILL || echo TERM)" || return 1
		sleep 2
	done
	stop_bdevperf
}
suite_bdevperf() {
	local count=3
	[ -z "$long" ] || count=20
	port=$(free_port)
	check "serve for bdevperf" start_target spdk-bdevperf "$port" "$work/bdevperf,size=64M" || return
	bdev_configuration "$port" > "$work/bdev.json"
	check "bdevperf with its defaults" run_bdevperf -q 128 -o 4096 -w verify -t 3
	check "bdevperf verifies through $count resets" resets_under_verify $count
	check "bdevperf verifies through $count restarts of the target" reconnects_under_verify $count
	check "the target of bdevperf ends with status 0" end_target spdk-bdevperf TERM
}

# ---- our host against SPDK's target -------------------------------------------------------
start_nvmf() { # PORT [HASH GROUP]: with these, no host is allowed yet
	local access=-a allowed='' options=()
	[ $# = 1 ] || access='' allowed="--dhchap-digests $2 --dhchap-dhgroups $3" options=(--interrupt-mode)
	rm -f "$work/nvmf.sock"
	"$spdk/build/bin/nvmf_tgt" --disable-cpumask-locks --wait-for-rpc -s 512 -r "$work/nvmf.sock" "${options[@]}" > "$logs/nvmf_tgt.log" 2>&1 &
	target_pid[nvmf]=$!
	wait_for 60 [ -S "$work/nvmf.sock" ] && rpc nvmf <<-R && return 0
	nvmf_set_config $allowed
	framework_start_init
	nvmf_create_transport -t TCP
	bdev_malloc_create -b malloc 64 512
	nvmf_create_subsystem $nqn $access -s SPDK0001
	nvmf_subsystem_add_ns $nqn malloc
	nvmf_subsystem_add_listener $nqn -t tcp -a 127.0.0.1 -s $1
	R
	tail -n 20 "$logs/nvmf_tgt.log"; return 1
}
there_and_back() {
	head -c 16777216 /dev/urandom > "$work/there"
	"$isolane" copy --verify "$work/there" "$uri" && "$isolane" copy "$uri" "$work/back" &&
		cmp -n 16777216 "$work/there" "$work/back"
}
our_bench() { "$isolane" --log-level warn bench "$uri" --rw randrw --mix 50 --size 16m --time 2s --verify "$@"; }
suite_host() {
	local uri
	port=$(free_port)
	check "start SPDK's target" start_nvmf "$port" || return
	uri="nvme+tcp://127.0.0.1:$port/$nqn"
	check "discover SPDK's target" "$isolane" discover "nvme+tcp://127.0.0.1:$port"
	check "info on SPDK's target" "$isolane" info "$uri"
	check "copy to SPDK's target and back" there_and_back
	check "bench --verify 4k on SPDK's target" our_bench --bs 4k --depth 32
	check "bench --verify 128k on SPDK's target" our_bench --bs 128k --depth 16
	check "bench --verify with digests on SPDK's target" our_bench --bs 64k --depth 8 -g -G
	check "bench --verify with two lanes on SPDK's target" our_bench --bs 512 --depth 8 --lanes 2
	check "SPDK's target ends with status 0" end_target nvmf TERM
}

# ---- authentication -------------------------------------------------------------------------
# Our host against SPDK's target, which allows one hash function and one group.
allow_host() { # KEY: with both keys
	rpc nvmf <<-R
	keyring_file_add_key host $work/host-$1.key
	keyring_file_add_key target $work/target-$1.key
	nvmf_subsystem_add_host $nqn $auth_host --dhchap-key host --dhchap-ctrlr-key target
	R
}
printed_lines() { # SIDE KEY: the lines that `isolane key convert` prints for SPDK
	"$isolane" key convert --nqn "$nqn" --host-nqn "$auth_host" "$work/host-$2.key" > "$work/lines" || return 1
	sed -n "/^# $1: SPDK/,/^# .*Linux/ s/^rpc.py //p" "$work/lines" | sed "s/ADDRESS -s 4420/127.0.0.1 -s $port/" | tee /dev/stderr
}
allow_host_by_our_lines() { # KEY
	(echo "nvmf_subsystem_remove_host $nqn $auth_host"; printed_lines target "$1") | rpc nvmf
}
authenticates() { our_bench --bs 4k --depth 8 --lanes 2 --host-nqn "$auth_host" "$@"; }
is_refused() { # MESSAGE OPTION...
	"$isolane" info "$uri" --host-nqn "$auth_host" "${@:2}" > "$work/refused" 2>&1 && { echo "it connected"; return 1; }
	cat "$work/refused"
	grep -q "$1" "$work/refused"
}
our_host_authenticates() { # HASH GROUP KEY
	local choice="$1, $2" host="$work/host-$3.key" target="$work/target-$3.key" other="$work/other.key" uri
	port=$(free_port) uri="nvme+tcp://127.0.0.1:$port/$nqn"
	check "start SPDK's target for $choice" start_nvmf "$port" "$1" "$2" || return
	check "SPDK's target reads our keys, $choice" allow_host "$3"
	check "our host authenticates, $choice" authenticates --key "$host"
	check "our host and SPDK's target authenticate, $choice" authenticates --key "$host" --ctrl-key "$target"
	[ "$2" = null ] || [ "$2" = ffdhe3072 ] && {
		check "SPDK's target refuses our host without a key, $choice" is_refused 'requires authentication'
		check "SPDK's target refuses another key, $choice" is_refused 'does not accept the key' --key "$other"
		check "our host refuses SPDK's target with another key, $choice" is_refused 'this host refuses the target' \
			--key "$host" --ctrl-key "$other"
		check "our host authenticates after refusals, $choice" authenticates --key "$host" --ctrl-key "$target"
	}
	[ "$2" != null ] || {
		check "SPDK's target takes our printed lines" allow_host_by_our_lines "$3"
		check "our host authenticates after the printed lines" authenticates --key "$host"
	}
	check "SPDK's target for $choice ends with status 0" end_target nvmf TERM
}

# SPDK's host against our target.
auth_configuration() { # HOST_KEY TARGET_KEY: names of files, - for none
	local keys='' use='' name file
	for name in host target; do
		file=$1; shift
		[ "$file" != - ] || continue
		keys+="${keys:+, }{\"method\": \"keyring_file_add_key\", \"params\": {\"name\": \"$name\", \"path\": \"$work/$file.key\"}}"
		if [ $name = host ]; then use+=", \"dhchap_key\": \"host\""; else use+=", \"dhchap_ctrlr_key\": \"target\""; fi
	done
	cat <<-J
	{"subsystems": [{"subsystem": "keyring", "config": [$keys]},
	 {"subsystem": "bdev", "config": [{"method": "bdev_nvme_attach_controller", "params": {"name": "Nvme0", "trtype": "TCP",
	 "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "$port", "subnqn": "$nqn", "hostnqn": "$auth_host"$use}}]}]}
	J
}
spdk_authenticates() { # HOST_KEY TARGET_KEY
	auth_configuration "$@" > "$work/bdev.json"
	run_bdevperf -q 16 -o 4096 -w verify -t 1
}
spdk_is_refused() { # MESSAGE HOST_KEY TARGET_KEY: one of SPDK, or of our target
	auth_configuration "${@:2}" > "$work/bdev.json"
	timeout -k 5 60 "${bdevperf[@]}" -q 1 -o 4096 -w read -t 1 > "$work/bdevperf.out" 2>&1
	local status=$?
	[ $status != 0 ] && [ $status != 124 ] && grep "$1" "$work/bdevperf.out" "$logs/target-$target.log" && return 0
	echo "status $status"; tail -n 20 "$work/bdevperf.out" "$logs/target-$target.log"; return 1
}
spdk_authenticates_again() { # KEY: while it verifies
	auth_configuration "host-$1" "target-$1" > "$work/bdev.json"
	start_bdevperf -q 16 -o 4096 -w verify -t 3600 && rpc bdevperf <<-R || return 1
	keyring_file_add_key again $work/host-$1.key
	bdev_nvme_set_keys Nvme0 --dhchap-key again --dhchap-ctrlr-key target
	R
	stop_bdevperf
}
spdk_attaches_by_our_lines() { # KEY
	end_old_bdevperf
	rm -f "$work/bdevperf.sock"
	"$spdk/build/examples/bdevperf" -z --disable-cpumask-locks -r "$work/bdevperf.sock" > "$work/bdevperf.out" 2>&1 &
	target_pid[bdevperf]=$!
	wait_for 60 [ -S "$work/bdevperf.sock" ] &&
		(echo framework_wait_init; printed_lines host "$1"; echo bdev_get_bdevs -b NAMEn1 -t 30000) | rpc bdevperf
	local status=$?
	end_target bdevperf TERM
	return $status
}
spdk_host_authenticates() { # HASH GROUP KEY
	local choice="$1, $2" target=auth-$1-$2
	check "serve for $choice" start_auth_target "$1" "$2" "$3" || return
	check "SPDK's host authenticates, $choice" spdk_authenticates "host-$3" -
	check "SPDK's host and our target authenticate, $choice" spdk_authenticates "host-$3" "target-$3"
	[ "$2" = null ] || [ "$2" = ffdhe3072 ] && {
		check "our target refuses SPDK's host without a key, $choice" spdk_is_refused 'missing DH-HMAC-CHAP key' - -
		check "our target refuses another key, $choice" spdk_is_refused 'its response is wrong' other -
		check "SPDK's host refuses our target with another key, $choice" spdk_is_refused 'controller challenge mismatch' "host-$3" other
		check "SPDK's host authenticates again, $choice" spdk_authenticates_again "$3"
		check "SPDK's host takes our printed lines, $choice" spdk_attaches_by_our_lines "$3"
	}
	check "the target for $choice ends with status 0" end_target "$target" TERM
}
suite_auth() {
	local hash group key
	check "generate keys" make_keys || return
	while read -r hash group key _ <&3; do
		our_host_authenticates "$hash" "$group" "$key"
		spdk_host_authenticates "$hash" "$group" "$key"
	done 3< <(auth_combinations null ffdhe2048 ffdhe3072 ffdhe4096 ffdhe6144 ffdhe8192)
}

rm -f "$logs/$run"-*.results
for suite in "${wanted[@]}"; do
	(trap end_targets EXIT; "suite_$suite") 2>&1 | tee "$logs/$run-$suite.results" | sed -u "s,^,[$run/$suite] ,"
done
tally "$logs/$run"-*.results
