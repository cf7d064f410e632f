# Sourced in a guest: the kernel's NVMe/TCP target (nvmet-tcp) and null_blk disks, both configured
# through configfs.

nvmet=/sys/kernel/config/nvmet
nullb=/sys/kernel/config/nullb

null_disk() { # NAME ATTRIBUTE=VALUE...: a memory-backed null_blk disk, powered on (size in MiB)
	local d=$nullb/$1 a; shift
	mkdir "$d"; echo 1 > "$d/memory_backed"; echo 512 > "$d/blocksize"
	for a in "$@"; do echo "${a#*=}" > "$d/${a%%=*}"; done
	echo 1 > "$d/power"
}

null_device() { # NAME: 6.12 names the disk after its directory, 6.1 by its index
	local d
	for d in "/dev/$1" "/dev/nullb$(cat "$nullb/$1/index")"; do
		[ -b "$d" ] && { echo "$d"; return 0; }
	done
	return 1
}

kernel_target_start() { # ADDR PORT NQN DEVICE
	modprobe nvmet-tcp
	local s=$nvmet/subsystems/$3 p=$nvmet/ports/1
	mkdir "$s"; echo 1 > "$s/attr_allow_any_host"
	mkdir "$s/namespaces/1"; echo "$4" > "$s/namespaces/1/device_path"; echo 1 > "$s/namespaces/1/enable"
	mkdir "$p"; echo tcp > "$p/addr_trtype"; echo ipv4 > "$p/addr_adrfam"
	echo "$1" > "$p/addr_traddr"; echo "$2" > "$p/addr_trsvcid"
	ln -s "$s" "$p/subsystems/"
}

kernel_target_restart() { # NQN: closes the port and every connection for a second
	rm "$nvmet/ports/1/subsystems/$1"
	sleep 1
	ln -s "$nvmet/subsystems/$1" "$nvmet/ports/1/subsystems/"
}

kernel_target_end() { # NQN
	rm "$nvmet/ports/1/subsystems/$1"; rmdir "$nvmet/ports/1"
	echo 0 > "$nvmet/subsystems/$1/namespaces/1/enable"
	rmdir "$nvmet/subsystems/$1/namespaces/1" "$nvmet/subsystems/$1"
}
