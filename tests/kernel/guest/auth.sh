#!/bin/bash
# auth.sh ADDR NQN HOSTNQN COMBINATION... - authentication of both sides with Linux as the host of targets outside,
# and as the target of a host outside. A combination is PORT,HASH,GROUP,KEY,WAYS (WAYS 1: the host, 2: both sides).
ADDR=$1 NQN=$2 HOST=$3; shift 3
. /guest/lib.sh
. /guest/kernel-target.sh
modprobe nvme-tcp

combination() { # sets PORT, hash, group, key, and the options of nvme connect
	local ways
	IFS=, read -r PORT hash group key ways <<< "$1"
	secrets=(-q "$HOST" --dhchap-secret "$(cat "/guest/host-$key.key")")
	[ "$ways" = 1 ] || secrets+=(--dhchap-ctrl-secret "$(cat "/guest/target-$key.key")")
}
authenticated() { # the kernel logs what the target has chosen
	dmesg | tail -n "+$((lines + 1))" | tee /tmp/dmesg | grep -q "qid 0: authenticated with hash hmac($hash) dhgroup $group" && return 0
	dmesg | tail -n "+$((lines + 1))"; return 1
}
works() { # COMBINATION: attaches, checks the choice of the target, and moves data
	combination "$1"
	lines=$(dmesg | wc -l)
	attach "${secrets[@]}" || return 1
	wait_for 10 authenticated || { authenticated; detach; return 1; }
	dd if=/dev/urandom of=/tmp/data bs=64k count=1 2> /dev/null
	dd if=/tmp/data of="$dev" bs=64k oflag=direct && dd if="$dev" of=/tmp/back bs=64k count=1 iflag=direct \
		&& cmp /tmp/data /tmp/back
}
again() { # the kernel authenticates all queues again when its secret is written
	local controller
	for controller in "$(subsystem_dir)"/nvme*/dhchap_secret; do
		lines=$(dmesg | wc -l)
		cat "/guest/host-$key.key" > "$controller" && wait_for 10 authenticated || return 1
	done
	dd if="$dev" of=/tmp/back bs=64k count=1 iflag=direct && cmp /tmp/data /tmp/back
}
refused() { # OPTION...: the target does not accept the host
	! nvme connect -t tcp -a "$ADDR" -s "$PORT" -n "$NQN" -k 30 "$@" && ! subsystem_dir
}

for one; do
	check "Linux host: ${one#*,}" works "$one" && [ "$one" != "$1" ] || check "Linux host authenticates again" again
	check "disconnect" detach
done
combination "$1"
check "Linux host without a key is refused" refused -q "$HOST"
check "Linux host with another key is refused" refused -q "$HOST" --dhchap-secret "$(cat /guest/other.key)"
check "Linux host refuses a target with another key" refused "${secrets[@]:0:4}" --dhchap-ctrl-secret "$(cat /guest/other.key)"

# The kernel's target.
host=$nvmet/hosts/$HOST
choose() { # COMBINATION: keys, hash function, and group of the host
	local ways
	IFS=, read -r _ hash group key ways <<< "$1"
	cat "/guest/host-$key.key" > "$host/dhchap_key" && cat "/guest/target-$key.key" > "$host/dhchap_ctrl_key" \
		&& echo "hmac($hash)" > "$host/dhchap_hash" && echo "$group" > "$host/dhchap_dhgroup"
}
serves() { # COMBINATION
	choose "$1" && ask connect "$1"
}
starts() {
	null_disk disk size=64 && kernel_target_start 10.0.2.15 4420 "$NQN" "$(null_device disk)" && mkdir "$host" \
		&& echo 0 > "$nvmet/subsystems/$NQN/attr_allow_any_host" && ln -s "$host" "$nvmet/subsystems/$NQN/allowed_hosts/"
}
modprobe null_blk nr_devices=0
check "start the kernel's target" starts || exit 1
for one; do
	check "Linux target: ${one#*,}" serves "$one"
done
check "Linux target refuses hosts without and with another key" ask refused
exit 0
