#!/bin/bash
# wheel.sh [CARGO-PROFILE] - build the Python wheel, install it into an empty virtual environment, and use everything
# that it has: the module, the program, and the libraries.
#
# Takes the program and its libraries as they are built in the profile (release).
set -u
. "$(dirname "$0")/lib.sh"
root=$tests/..
env=$work/env

installs() {
	python3 -m venv "$env" && "$env/bin/pip" install -q --no-index --no-deps "$work"/wheel/isolane-*.whl
}
uses_no_other_file() { # the links of `scripts/install` are files here
	[ "$(find "$work/wheel" -type f | wc -l)" = 1 ] && [ "$(command -v "$env/bin/isolane")" ] &&
		[ "$("$env/bin/isolane" verbs libs)" -ef "$env/lib/isolane-verbs" ]
}
preloads() {
	"$env/bin/isolane" verbs run -- env | grep -qx "LD_PRELOAD=$env/bin/../lib/isolane-verbs/libibverbs.so.1" &&
		"$env/bin/isolane" verbs run -- python3 -c 'import ctypes; print(ctypes.CDLL("librdmacm.so").rdma_create_id)'
}
pings() { # with librdmacm, so that both libraries have one copy of their state
	local port server
	port=$(free_port)
	timeout -k 5 60 "$env/bin/isolane" verbs run -- rping -s -a 127.0.0.1 -p "$port" -C 20 & server=$!
	wait_for 30 "$env/bin/isolane" verbs run -- timeout 20 rping -c -a 127.0.0.1 -p "$port" -C 20 -V || return 1
	wait $server
}
offers_provider() { FI_PROVIDER_PATH=$env/lib/libfabric fi_info -p isolane -t FI_EP_MSG; }
module() {
	local port
	port=$(free_port)
	isolane=$env/bin/isolane
	start_target python "$port" mem:64M || return 1
	timeout -k 5 300 "$env/bin/python" "$tests/wheel.py" "nvme+tcp://127.0.0.1:$port/$nqn?nsid=1"
}
uninstalls() {
	"$env/bin/pip" uninstall -q -y isolane && ! find "$env" -name '*isolane*' | grep .
}

status=0
profile=${1-release}
check "scripts/build-wheel builds a wheel" "$root/scripts/build-wheel" --no-build --profile "$profile" "$work/wheel" || exit 1
check "pip installs it into an empty environment" installs || exit 1
check "one file is the whole installation" uses_no_other_file || status=1
check "the installed program runs" "$env/bin/isolane" --version || status=1
check "the installed program preloads its libraries" preloads || status=1
check "rping runs with the libraries of the wheel" pings || status=1
check "libfabric finds the provider of the wheel" offers_provider || status=1
check "pip installs numpy" "$env/bin/pip" install -q numpy || status=1
module || status=1
check "pip uninstalls all files" uninstalls || status=1
exit $status
