# fabric_long.sh - fabtests and MPI over the provider of libfabric, for `fabric.sh --long`, which sources it.
#
# Needs the packages of .ci/packages-fabric. Builds fabtests from a release of libfabric, unless FABTESTS_DIR names the
# prefix of an installed one, and installs MPICH and mpi4py from PyPI.

fabtests_version=1.17.0
fabtests_sum=5d3cf28de32549822cbb155329fe7ce0f88423157e1210a76b23c498c848ce2a

build_fabtests() {
	local name=fabtests-$fabtests_version
	local url=https://github.com/ofiwg/libfabric/releases/download/v$fabtests_version/$name.tar.bz2
	curl -fsSL --retry 3 -o "$work/$name.tar.bz2" "$url" ||
		{ echo "cannot download $url; set FABTESTS_DIR to the prefix of installed fabtests"; return 1; }
	echo "$fabtests_sum  $work/$name.tar.bz2" | sha256sum -c || return 1
	tar -xf "$work/$name.tar.bz2" -C "$work" &&
		(cd "$work/$name" && ./configure --prefix="$work/fabtests" && make -j"$(nproc)" install) > "$work/build.log" 2>&1 ||
		{ tail -n 20 "$work/build.log"; return 1; }
}
run_fabtest() { # PROVIDER TEST: prints pass, notrun (as fabtests define it), or fail
	local command client server server_status port
	read -ra command <<< "$2"
	port=$(free_port)
	case " ${unit_tests[*]} " in
		*" $2 "*)
			command=("${command[@]//SERVER_ADDR/127.0.0.1}")
			timeout -k 5 60 "${command[@]//GOOD_ADDR/127.0.0.1}" -p "$1" > "$work/client" 2>&1; client=$?
			server_status=$client;;
		*)
			timeout -k 5 60 "${command[@]}" -p "$1" -B "$port" -s 127.0.0.1 > "$work/server" 2>&1 & server=$!
			wait_for 30 is_listening_or_ended "$port" $server
			timeout -k 5 60 "${command[@]}" -p "$1" -P "$port" -s 127.0.0.1 127.0.0.1 > "$work/client" 2>&1; client=$?
			[ $client = 0 ] || kill $server 2> /dev/null
			wait $server; server_status=$?;;
	esac
	# ENODATA and ENOSYS.
	case $server_status-$client in 0-0) echo pass;; 61-*|38-*) echo notrun;; *) echo fail;; esac
}
runs_fabtests() { # SET: each test over both providers in turn
	local test provider result list="$1_tests[@]" excluded=$fabtests/share/fabtests/test_configs/tcp/tcp.exclude
	local -A passed=([isolane]=0 [tcp]=0)
	for test in "${!list}"; do
		grep -v '^#' "$excluded" | grep . | grep -qEf - <(echo "$test") && continue
		for provider in isolane tcp; do
			result=$(PATH=$fabtests/bin:$PATH run_fabtest $provider "$test")
			echo "$provider $result: $test"
			[ $result != pass ] || passed[$provider]=$((passed[$provider] + 1))
			[ $provider-$result != isolane-fail ] || { cat "$work/server" "$work/client" 2>/dev/null | tail -n 5; }
		done
	done
	echo "passed: isolane ${passed[isolane]}, tcp ${passed[tcp]}"
	[ "${passed[tcp]}" -gt 0 ] && [ "${passed[isolane]}" -ge "${passed[tcp]}" ]
}
installs_mpi() {
	python3 -m venv "$work/mpi" && "$work/mpi/bin/pip" install -q mpich==5.0.2 mpi4py==4.1.2
}
runs_open_mpi() {
	timeout -k 5 120 mpirun --allow-run-as-root --oversubscribe -np 3 --mca pml cm --mca mtl ofi \
		--mca mtl_ofi_provider_include "isolane;ofi_rxm" -x FI_PROVIDER_PATH -x MPI4PY_MPIABI=openmpi \
		"$work/mpi/bin/python3" "$tests/fabric_mpi.py" | tee "$work/out"
	grep -q '^ok Open MPI' "$work/out"
}
runs_mpich() { # without shared memory between processes of this machine
	MPI4PY_MPIABI=mpich LD_LIBRARY_PATH=$work/mpi/lib FI_PROVIDER=isolane MPIR_CVAR_CH4_NETMOD=ofi \
		MPIR_CVAR_NOLOCAL=1 MPIR_CVAR_CH4_OFI_CAPABILITY_SETS_DEBUG=1 timeout -k 5 120 "$work/mpi/bin/mpiexec" -n 3 \
		"$work/mpi/bin/python3" "$tests/fabric_mpi.py" | tee "$work/out"
	grep -q '^ok MPICH' "$work/out" && grep -q 'provider: isolane;ofi_rxm' "$work/out"
}

fabtests=${FABTESTS_DIR:-$work/fabtests}
if [ -n "${FABTESTS_DIR-}" ] || check "fabtests are built" build_fabtests; then
	eval "$(sed -n '/^\(unit\|functional\|short\)_tests=(/,/^)/p' "$fabtests/bin/runfabtests.sh")"
	for set in unit functional short; do
		check "fabtests, set $set: as many pass as over tcp" runs_fabtests $set || status=1
	done
else
	status=1
fi
if check "MPICH and mpi4py are installed" installs_mpi; then
	check "Open MPI: messages, reductions, and one-sided access" runs_open_mpi || status=1
	check "MPICH: the same" runs_mpich || status=1
else
	status=1
fi
