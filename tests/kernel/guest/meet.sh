#!/bin/bash
# meet.sh ADDR PORT NQN - first commands: discover, connect, list, identify, logs, features.
ADDR=$1 PORT=$2 NQN=$3
. /guest/lib.sh
modprobe nvme-tcp

discovers() {
	nvme discover -t tcp -a "$ADDR" -s "$PORT" > /tmp/discover || return 1
	cat /tmp/discover
	grep -q "subnqn: *$NQN" /tmp/discover && grep -q "trsvcid: *$PORT" /tmp/discover && grep -q "traddr: *$ADDR" /tmp/discover
}
lists() { nvme list | tee /tmp/list && grep -q "$dev" /tmp/list; }
identifies_controller() {
	nvme id-ctrl -H "$dev" | tee /tmp/id && grep -q "subnqn *: $NQN" /tmp/id && grep -qE 'ioccsz *: [1-9]' /tmp/id
}
identifies_namespace() { nvme id-ns -H "$dev" -n 1 | tee /tmp/ns && grep -qE 'nsze *: 0x[1-9a-f]' /tmp/ns; }
describes_namespace() { nvme ns-descs "$dev" -n 1 | tee /tmp/descs && grep -q 'uuid *: .*[1-9a-f]' /tmp/descs; }
lists_namespaces() { nvme list-ns "$dev" | tee /tmp/ns-list && grep -q ':0x1$' /tmp/ns-list; }
logs_health() { nvme smart-log "$dev" | tee /tmp/smart && grep -qE 'critical_warning[[:space:]]*: 0' /tmp/smart; }
logs_errors() { nvme error-log -e 1 "$dev"; }
logs_firmware() { nvme fw-log "$dev"; }
logs_effects() { nvme effects-log "${dev%n*}"; }    # of the controller
host_page() { nvme get-log "$dev" -i 0xc0 -l 262144 -b > /tmp/page && tail -c +65 /tmp/page | tr -d '\0' > /tmp/host-page; }
has_slow_operations() { # a core publishes them after a second
	dd if="$dev" of=/dev/null bs=4096 count=64 iflag=direct && host_page && grep -q '"slow":\[{"side":"target"' /tmp/host-page
}
logs_own_stages() { # only a target of Isolane has log page C0h
	nvme id-ctrl "$dev" -b | tail -c +3089 | head -c 1 | tr '\2\3' yy | grep -q y || return 1
	wait_for 30 has_slow_operations || return 1
	grep -o '"numbers":.\{400\}' /tmp/host-page
	grep -q '^{"version":1,' /tmp/host-page && grep -q '"host":"nqn\.[^}]*"queue":[1-9]' /tmp/host-page \
		&& grep -q '"stages_ns":\[\["batch",[1-9]' /tmp/host-page && ! grep -q '"path":"' /tmp/host-page
}
gets_features() { nvme get-feature "$dev" -f 7 -H && { [ -n "${STANDIN-}" ] || nvme get-feature "$dev" -f 6 -H; }; }
sets_cache() { # only a target that then makes every write durable may disable its volatile write cache
	nvme get-feature "$dev" -f 6 -H
	nvme set-feature "$dev" -f 6 -v 1 || true
	dd if=/dev/zero of="$dev" bs=4096 count=1 oflag=direct conv=fsync
}
discards_and_zeroes() { nvme dsm "$dev" -n 1 -d -s 0 -b 64 && nvme write-zeroes "$dev" -n 1 -s 64 -c 63; }
flushes() { nvme flush "$dev" -n 1; }
connects_all() { # connect-all follows the discovery log
	nvme connect-all -t tcp -a "$ADDR" -s "$PORT" && wait_for 30 block_device 1
}

check "discover" discovers
check "connect" attach || exit 1
check "nvme list" lists
check "id-ctrl" identifies_controller
check "id-ns" identifies_namespace
check "ns-descs" describes_namespace
check "list-ns" lists_namespaces
check "smart-log" logs_health
check "error-log" logs_errors
check "fw-log" logs_firmware
check "effects-log" logs_effects
[ -n "${STANDIN-}" ] || check "stages of this host" logs_own_stages
check "get-feature" gets_features
check "discard and write zeroes" discards_and_zeroes
check "flush" flushes
[ -n "${STANDIN-}" ] || check "volatile write cache" sets_cache
check "disconnect" detach
check "connect-all" connects_all
check "disconnect again" detach
exit 0
