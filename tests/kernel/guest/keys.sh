#!/bin/bash
# keys.sh ADDR PORT NQN HOSTNQN - the driver changes the keys of this host and of the target while fio verifies.
# /guest/SIDE-old.key and SIDE-new.key with SIDE of host|target are the keys; both sides begin with the old ones.
ADDR=$1 PORT=$2 NQN=$3 HOST=$4
. /guest/lib.sh
modprobe nvme-tcp
engine=libaio    # with io_uring, which submits with NOWAIT, requests that wait for a path fail with EAGAIN
trap '' PIPE     # nvme-tcp sends on behalf of the process that submits: see restart.sh

secrets() { # HOST_KEY TARGET_KEY: sets the options of nvme connect
	secrets=(-q "$HOST" --dhchap-secret "$(cat "/guest/host-$1.key")" --dhchap-ctrl-secret "$(cat "/guest/target-$2.key")")
}
logged() { dmesg | tail -n "+$((lines + 1))" | grep "$1"; } # PATTERN
is_live() { [ "$(cat "$controller/state")" = live ]; }
fio_is_undisturbed() { fio_passes && connections_stay; }
# The kernel logs only the authentication of the admin queue, and the failures of all.
takes() { # FILE_IN_SYSFS KEY: the kernel authenticates all queues with this key, on the connections that it has
	lines=$(dmesg | wc -l)
	cat "/guest/$2.key" > "$controller/$1" && wait_for 20 logged 'qid 0: controller authenticated' && fio_passes && ! logged 'failed'
}
connects_again() { # REQUEST...: the kernel authenticates all queues of new connections, and fio goes on
	lines=$(dmesg | wc -l)
	"$@" && wait_for 30 logged 'qid 0: controller authenticated' && wait_for 30 is_live && fio_passes
}
resets() { echo 1 > "$controller/reset_controller"; }

attaches() {
	secrets old old
	attach "${secrets[@]}" || return
	controller=$(echo "$(subsystem_dir)"/nvme*/dhchap_secret); controller=${controller%/*}
}
is_told_two() { ask host-keys old new && fio_is_undisturbed; }
uses_either() {
	takes dhchap_secret host-new && takes dhchap_secret host-old && takes dhchap_secret host-new && connections_stay
}
is_told_one() { ask host-keys new && fio_is_undisturbed && connects_again resets; }
is_disconnected() { connects_again ask disconnect; }
# The kernel authenticates at once, so it has to know the new key first.
sees_new_target() {
	ask target-keys new && fio_passes && takes dhchap_ctrl_secret target-new && connects_again resets
}
refused() { # HOST_KEY TARGET_KEY: a new connection fails
	secrets "$@"
	! nvme connect -t tcp -a "$ADDR" -s "$PORT" -n "$NQN" -k 30 "${secrets[@]}" && gone
}
# The host is connected with a key that the target no longer has. It cannot come back, and its requests fail.
is_shut_out() {
	ask host-keys old && verify 4k 8 1m > /dev/null && ask disconnect && wait_for 60 gone
}
attaches_with() { secrets "$@"; attach "${secrets[@]}" && verify 4k 8 1m > /dev/null; }

check "connect with the first keys" attaches || exit 1
fio_starts 2m
check "the target takes a second key of this host, and fio goes on" is_told_two
check "the connected host authenticates with either key" uses_either
check "the target drops the first key, and a reset host connects with the second one" is_told_one
check "a disconnected host connects with the second key" is_disconnected
check "the target changes its own key, and the host follows" sees_new_target
check "fio finds no wrong data" fio_is_verified
check "detach" detach
check "the dropped key of the host is refused" refused old new
check "the host refuses the dropped key of the target" refused new old
check "connect with the second keys" attaches_with new new
check "a host whose key is dropped works until its connections end" is_shut_out
check "connect with the first key, which the target has again" attaches_with old new
check "detach again" detach
exit 0
