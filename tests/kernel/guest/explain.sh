#!/bin/bash
# explain.sh SCENARIO - injects one fault that needs a kernel of its own, and sends the verdict of
# `isolane explain` to the driver, which checks it.
#
# The target has core 0, and all hosts have core 1.
. /guest/lib.sh
. /guest/kernel-target.sh
NQN=nqn.2014-08.org.example:explain
window_s=10
hosts=0

serve() { # ARGUMENT...: of isolane serve; $group is its control group, if any
	(
		[ -z "${group-}" ] || echo "$BASHPID" > "$group/cgroup.procs"
		exec isolane serve "$@" --listen 0.0.0.0:4420 --nqn "$NQN" --cores 0 --log-level warn --control-socket /tmp/control
	) > /tmp/serve.out 2> /tmp/serve.log &
	wait_for 60 grep -q '^listening on ' /tmp/serve.out || { cat /tmp/serve.log; return 1; }
}

load() { # ADDR NSID ARGUMENT...: of isolane bench; $space is the process with its network, if any
	local uri="nvme+tcp://$1:4420/$NQN?nsid=$2"; shift 2
	hosts=$((hosts + 1))
	${space:+nsenter -n -t "$space"} taskset 2 isolane bench "$uri" --mode sleep --time 600s --seed "$hosts" \
		--host-nqn "nqn.2014-08.org.example:host-$hosts" --host-id "00000000-0000-4000-8000-00000000000$hosts" \
		--log-level error "$@" > "/tmp/bench-$hosts.log" 2>&1 &
}

under_load() { # all hosts run for longer than a window
	sleep $((window_s + 2))
	[ "$(jobs -r | grep -c 'isolane bench')" = $hosts ] || { cat /tmp/bench-*.log; return 1; }
}

verdict() { # NAME [ARGUMENT...] of isolane explain: the log of the driver has the reasons of a failure
	local name=$1; shift
	isolane explain /tmp/control --window ${window_s}s --json "$@" > /tmp/verdict || return 1
	isolane snapshot /tmp/control -o /tmp/snapshot && ask "snapshot $name $(gzip < /tmp/snapshot | base64 -w 0)" > /dev/null || return 1
	ask "verdict $name $(tr -d '\n' < /tmp/verdict)" > /dev/null
}

# Two volumes on one slow disk of four, each with half the load of the others.
shared_disk() {
	local name volumes=() nsid
	modprobe null_blk nr_devices=0
	for name in first second slow fourth; do
		null_disk $name size=64 irqmode=2 completion_nsec=$([ $name = slow ] && echo 6000000 || echo 1000000) || return 1
		volumes+=("$(null_device $name)")
	done
	partition "${volumes[2]}" || return 1
	serve "${volumes[0]}" "${volumes[1]}" "${volumes[2]}1" "${volumes[2]}2" "${volumes[3]}" || return 1
	for nsid in 1 2 5; do load 127.0.0.1 $nsid --rate 100 --depth 8; done
	for nsid in 3 4; do load 127.0.0.1 $nsid --rate 50 --depth 8; done
}

partition() { # DISK: in two; an MBR ends with two of four entries in use, and a signature
	{
		head -c 446 /dev/zero
		printf '\0\0\0\0\x83\0\0\0\0\x08\0\0\0\0\x01\0'
		printf '\0\0\0\0\x83\0\0\0\0\x08\x01\0\0\x80\0\0'
		head -c 32 /dev/zero
		printf '\x55\xaa'
	} > /tmp/mbr
	dd if=/tmp/mbr of="$1" bs=512 count=1 conv=fsync && blockdev --rereadpt "$1" && wait_for 10 test -b "${1}2"
}

# Loss and delay on the path to one of two hosts.
lossy_path() {
	local at
	modprobe veth; modprobe sch_netem
	serve mem:64M || return 1
	for at in 1 2; do
		unshare -n sleep 3600 &
		space=$!
		ip link add "path$at" type veth peer name "host$at" || return 1
		# Otherwise the core of the target would also receive the packets of the hosts.
		echo 2 > "/sys/class/net/host$at/queues/rx-0/rps_cpus" || return 1
		wait_for 10 ip link set "host$at" netns $space || return 1
		ip addr add "10.$at.0.1/24" dev "path$at" && ip link set "path$at" up || return 1
		nsenter -n -t $space ip addr add "10.$at.0.2/24" dev "host$at" && nsenter -n -t $space ip link set "host$at" up || return 1
		[ $at = 2 ] || tc qdisc add dev path1 root netem delay 5ms loss 1% limit 10000 || return 1
		load "10.$at.0.1" 1 $([ $at = 1 ] || echo --rate 400) --depth 32
	done
}

# The control group of the target has half of a core.
quota() {
	mount -t cgroup2 none /sys/fs/cgroup && echo +cpu > /sys/fs/cgroup/cgroup.subtree_control || return 1
	group=/sys/fs/cgroup/target
	mkdir $group && echo "50000 100000" > $group/cpu.max || return 1
	serve mem:64M --mode poll && load 127.0.0.1 1 --rate 200 --depth 32
}

# A handler that takes 2 ms on the interrupt line of one of eight drives. The line has core 2.
slow_handler() {
	local function=0000:00:04.0 nsid drives=(/dev/nvme?n1) line
	insmod /guest/slow_handler.ko handler_us=2000 || return 1
	# The handlers of a line run in the order in which they were added.
	echo $function > /sys/bus/pci/drivers/nvme/unbind && echo $function > /sys/bus/pci/drivers/nvme/bind || return 1
	wait_for 30 test -b "${drives[7]}" || return 1
	line=$(cat /sys/bus/pci/devices/$function/irq)
	echo 4 > "/proc/irq/$line/smp_affinity" || return 1
	grep "^ *$line:" /proc/interrupts
	serve "${drives[@]}" || return 1
	# With equal rates, some hosts would always find the core of the emulator in the handler.
	for nsid in 1 2 3 4 5 6 7 8; do load 127.0.0.1 $nsid --rate $((60 + nsid)) --depth 8; done
}

case $1 in
	11) inject=slow_handler;;
	12) inject=lossy_path;;
	12-quota) inject=quota;;
	14) inject=shared_disk;;
esac
check "inject $1" $inject && check "all hosts of $1 run" under_load && check "name $1" verdict "$1"
[ "$1" != 11 ] || {
	mount -t tracefs none /sys/kernel/tracing
	check "name $1 with --deep" verdict "$1-deep" --deep
}
exit 0
