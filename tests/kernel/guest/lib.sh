# Sourced by the scripts that run in a guest: attaching a subsystem through the kernel's host, and
# requests to the driver outside. `attach` needs ADDR, PORT, and NQN.

. /guest/checks.sh
[ ! -e /nvme-cli.tar ] || { tar -x -f /nvme-cli.tar -C /; hash -r; echo "# $(nvme version | head -n 1)"; }
on_check_failed() { dmesg | tail -n 40 | sed 's/^/    kernel: /'; }
exec 8<&0 9>&1 0</dev/null    # responses of the driver and requests to it, also while a check redirects its output

ask() { # WORD...: sends a request to the driver outside and waits for the response
	local answer
	echo "@$*" >&9
	read -r answer <&8
	[ "$answer" = done ] || { echo "the driver failed: $answer"; return 1; }
}

# Both start no program, which takes an emulated guest long.
subsystem_dir() { # the sysfs directory of the attached subsystem $NQN
	local d name
	for d in /sys/class/nvme-subsystem/nvme-subsys*; do
		{ read -r name < "$d/subsysnqn"; } 2> /dev/null && [ "$name" = "$NQN" ] && { echo "$d"; return 0; }
	done
	return 1
}

block_device() { # NSID: prints the block device of the attached namespace; the kernel numbers devices in order of discovery
	local d nsid size; d=$(subsystem_dir) || return 1
	for d in "/sys/block/nvme${d##*nvme-subsys}n"*; do
		{ read -r nsid < "$d/nsid" && read -r size < "$d/size"; } 2> /dev/null && [ "$nsid" = "$1" ] && [ "$size" -gt 0 ] \
			&& [ -b "/dev/${d##*/}" ] && { echo "/dev/${d##*/}"; return 0; }
	done
	return 1
}

absent() { ! block_device "$1"; }

attach() { # [OPTION...] of nvme connect: sets $dev to the device of the first namespace
	local nsid=${NSID:-1}
	nvme connect -t tcp -a "$ADDR" -s "$PORT" -n "$NQN" -k 30 --reconnect-delay=1 "$@" || return 1
	wait_for 30 block_device "$nsid" || { echo "no block device for namespace $nsid"; return 1; }
	dev=$(block_device "$nsid")
}

gone() { ! subsystem_dir; }

detach() {
	nvme disconnect -n "$NQN" && wait_for 30 gone
}

verify() { # BLOCK_SIZE DEPTH TOTAL [FIO OPTION...]: writes TOTAL bytes, reads them back, and compares
	local bs=$1 depth=$2 total=$3; shift 3
	fio --name=verify --filename="$dev" --direct=1 --ioengine="${engine:-io_uring}" --bs="$bs" --iodepth="$depth" \
		--size="$total" --rw=randwrite --randrepeat=0 --verify=crc32c --verify_fatal=1 --do_verify=1 \
		--output-format=terse --terse-version=3 "$@"
}

fio_starts() { # TOTAL [FIO OPTION...]: fio verifies $dev in the background until `fio_is_verified`
	rm -f /tmp/stop
	until [ -e /tmp/stop ]; do verify 4k 16 "$@" --verify_backlog=64 || exit; date +%s%N > /tmp/pass; done > /tmp/fio.log 2>&1 &
	fio=$!
}
fio_is_verified() {
	touch /tmp/stop
	wait "$fio" || { echo "fio failed with status $?"; tail -n 20 /tmp/fio.log; return 1; }
}
fio_passes() { # fio completes a pass that starts after this call, so it did all its I/O in the present state
	local before at
	for at in 1 2; do
		before=$(cat /tmp/pass)
		wait_for 30 fio_has_passed "$before" || { tail -n 20 /tmp/fio.log; return 1; }
	done
}
fio_has_passed() { [ "$(cat /tmp/pass)" != "$1" ]; }
connections_stay() { ! dmesg | grep -iE 'reconnect|I/O error|resetting controller|timeout'; }
