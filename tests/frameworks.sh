#!/bin/bash
# frameworks.sh [WHEEL] - run libraries of machine learning, unmodified, over the preload library, and check each byte.
#
# Needs target/release/isolane with its libraries, and PyPI. PyTorch is Debian's, in a directory of mmdebstrap (1.4 GB), and
# also sends a tensor with the WHEEL of scripts/build-wheel.
set -u
. "$(dirname "$0")/lib.sh"
libraries=$("$isolane" verbs libs) || exit 1
root=$work/root
python=$work/env/bin/python

verbs() { timeout -k 5 150 "$isolane" verbs run -- "$@"; }
device=$("$isolane" verbs devices --json | python3 -c '
import json, sys
print(next(row["device"] for row in json.load(sys.stdin) if row["address"] == "127.0.0.1"))')
installs() { # PACKAGE...
	python3 -m venv "$work/env" && "$work/env/bin/pip" install -q "$@"
}
nccl() {
	local library
	library=$(echo "$work"/env/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2)
	NCCL_IB_HCA="=$device" verbs "$python" "$tests/verbs/nccl_net.py" "$library"
}
has_torch() {
	mmdebstrap --format=directory --variant=minbase --include=python3-torch,python3-pip bookworm "$root" \
		"${DEBIAN_MIRROR:-http://deb.debian.org/debian}" && mkdir -p "$root"/opt/{bin,lib} &&
		cp "$isolane" "$root/opt/bin/" && cp -r "$(dirname "$isolane")/libisolane_ibverbs.so" "$libraries" "$root/opt/lib/" &&
		cp "$tests/verbs/torch_rpc.py" "$tests/../crates/isolane-python/examples/send_arrays.py" "$root/opt/"
}
in_root() { # COMMAND...: with the files of the directory, and the devices of this machine
	# shellcheck disable=SC2016
	timeout -k 5 150 unshare -rm bash -c 'cd "$0" && for dir in dev proc sys; do mount --rbind /$dir $dir || exit; done; exec chroot . "$@"' "$root" "$@"
}
ranks() { # [COMMAND...]: both processes
	local port server status; port=$(free_port)
	in_root "$@" python3 /opt/torch_rpc.py 1 "$port" > "$work/server" 2>&1 & server=$!
	in_root "$@" python3 /opt/torch_rpc.py 0 "$port"; status=$?
	wait $server && [ $status = 0 ] && return 0
	cat "$work/server"
	return 1
}
has_no_transport() { # because there are no devices
	! ranks > "$work/none" 2>&1 && grep "transport '' not in use" "$work/none"
}
sends_tensor() { # WHEEL
	local server
	cp "$1" "$root/opt/" && in_root pip install -q --break-system-packages --no-index --no-deps "/opt/${1##*/}" || return 1
	in_root python3 -u /opt/send_arrays.py > "$work/receiver" & server=$!
	wait_for 60 grep -s . "$work/receiver"
	in_root python3 /opt/send_arrays.py "$(head -n 1 "$work/receiver")" && wait $server && cat "$work/receiver" &&
		grep -q '^array: 262144 bytes, sum 65536' "$work/receiver" && grep -q '^tensor: 4096 bytes, sum 1024' "$work/receiver"
}

status=0
# The table of NCCL differs in other versions.
check "pip installs NCCL and Mooncake" installs nvidia-nccl-cu12==2.32.3 mooncake-transfer-engine-non-cuda==0.3.13.post1 || exit 1
check "NCCL's plugin for InfiniBand" nccl || status=1
check "Mooncake's transfer engine over rdma" verbs "$python" "$tests/verbs/mooncake_rdma.py" "$device" || status=1
if ! unshare -rm true; then
	echo "not run: PyTorch needs a mount namespace"
	exit $status
fi
check "a directory with Debian's PyTorch" has_torch || exit 1
check "PyTorch's RPC over TensorPipe's transport ibv" ranks /opt/bin/isolane verbs run -- || status=1
check "without the preload library, the transport does not exist" has_no_transport || status=1
[ -z "${1-}" ] || check "the wheel sends a tensor of PyTorch" sends_tensor "$1" || status=1
exit $status
