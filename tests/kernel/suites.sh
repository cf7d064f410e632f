# The suites of interop.sh. Each runs in its own shell, with $kernel set, and prints the lines of
# its checks. The scripts of the guests are in guest/.

# Targets of the fio suite: each I/O engine with memory and with files; namespace 1 has blocks of
# 512 bytes, namespace 2 of 4,096 bytes.
start_targets() {
	local io port
	combination_targets=()
	for io in uring epoll; do
		port=$(free_port)
		start_target "$kernel-memory-$io" "$port" mem:64M mem:64M,block-size=4096 --io "$io" || return 1
		combination_targets+=("memory-$io,$port")
		port=$(free_port)
		start_target "$kernel-file-$io" "$port" "$work/a-$io,size=64M" "$work/b-$io,size=64M,block-size=4096" --io "$io" || return 1
		combination_targets+=("file-$io,$port")
	done
}

block_sizes=(512 4k 64k 1m)
depths=(1 4 16 64)
digests=(none header data both)
queues=(default write poll write+poll)
totals=(512k 4m 8m 16m)

combination() { # BLOCK_SIZE DEPTH DIGESTS QUEUES TARGET as indices
	local nsid=1
	[ "$1" = 0 ] || nsid=$(((RANDOM & 1) + 1))      # 512-byte I/O needs 512-byte blocks
	local target=${combination_targets[$5]}
	echo "${target%,*}-ns$nsid,${target#*,},$nqn,$nsid,${block_sizes[$1]},${depths[$2]},${digests[$3]},${queues[$4]},${totals[$1]}"
}

# Covers every pair of values of any two of the five factors: the orthogonal array of 16 rows and
# columns i, j, i+j, i+2j, i+3j over the field of four elements.
pairwise() {
	local i j times=(0 0 0 0 0 1 2 3 0 2 3 1 0 3 1 2)
	for i in 0 1 2 3; do for j in 0 1 2 3; do
		combination $i $j $((i ^ j)) $((i ^ times[8 + j])) $((i ^ times[12 + j]))
	done; done
}

product() {
	local i j d q t
	for i in 0 1 2 3; do for j in 0 1 2 3; do for d in 0 1 2 3; do for q in 0 1 2 3; do for t in 0 1 2 3; do
		combination $i $j $d $q $t
	done; done; done; done; done
}

suite_meet() {
	local port; port=$(free_port)
	start_target "$kernel-meet" "$port" "$work/disk,size=64M" || { echo "not ok start a target"; return; }
	guest "$kernel-meet" "$kernel" 90 -- meet.sh 10.0.2.2 "$port" "$nqn"
	check "the target ends with status 0 on SIGTERM" end_target "$kernel-meet" TERM
}

suite_verify() {
	local combinations=() at=0 step=32
	check "start the targets" start_targets || return
	readarray -t combinations < <(if [ -n "$long" ]; then product; else pairwise; fi)
	while [ $at -lt ${#combinations[@]} ]; do
		guest "$kernel-verify-$at" "$kernel" $((60 + 30 * step)) -- verify.sh 10.0.2.2 "${combinations[@]:$at:$step}"
		at=$((at + step))
	done
}

suite_filesystem() {
	local port; port=$(free_port)
	start_target "$kernel-filesystem" "$port" "$work/disk,size=128M" || { echo "not ok start a target"; return; }
	on_ask() { restart_target "$kernel-filesystem" TERM; }
	guest "$kernel-filesystem" "$kernel" 120 -- filesystem.sh 10.0.2.2 "$port" "$nqn"
}

suite_restart() {
	local port io kills=3; port=$(free_port)
	[ -z "$long" ] || kills=20
	io=uring; [ "$kernel" = 6.12 ] || io=epoll
	start_target "$kernel-restart" "$port" "$work/disk,size=64M" --io $io || { echo "not ok start a target"; return; }
	on_ask() { restart_target "$kernel-restart" KILL; }
	guest "$kernel-restart" "$kernel" $((90 + 15 * kills)) -- restart.sh 10.0.2.2 "$port" "$nqn" "$kills"
}

suite_namespaces() {
	local port uuid=7f3c1f0e-5f0b-4b7c-9d3e-0a1b2c3d4e5f; port=$(free_port)
	start_target "$kernel-namespaces" "$port" "$work/disk,size=64M" --control-socket "$work/control.sock" ||
		{ echo "not ok start a target"; return; }
	change() { "$isolane" ctl --socket "$work/control.sock" namespace "$@"; }
	on_ask() {
		case $1 in
			add) rm -f "$work/second"; change add "$work/second,size=64M,nsid=2,uuid=$uuid";;
			grow) change resize 2 128M;;
			replace) cp --sparse=always "$work/second" "$work/copy" && change replace 2 "$work/copy,uuid=$uuid" | tee /dev/stderr | grep -q 'is closed';;
			protect) change read-only 2;;
			unprotect) change read-only 2 --off;;
			remove) change remove 2 | tee /dev/stderr | grep -q 'is closed';;
		esac
	}
	guest "$kernel-namespaces" "$kernel" 180 -- namespaces.sh 10.0.2.2 "$port" "$nqn"
	check "the target ends with status 0 after its changes" end_target "$kernel-namespaces" TERM
}

suite_nvmet() {
	local port; port=$(free_port)
	uri="nvme+tcp://127.0.0.1:$port/$nqn"
	on_ask() { with_kernel_target > "$work/nvmet.results"; }
	guest "$kernel-nvmet" "$kernel" 150 -p "$port:4420" -- nvmet.sh "$nqn"
	cat "$work/nvmet.results"
}

there_and_back() {
	head -c 16777216 /dev/urandom > "$work/there"
	truncate -s 20M "$work/there"
	"$isolane" copy --verify "$work/there" "$uri" && "$isolane" copy "$uri" "$work/back" || return 1
	cmp -n 20971520 "$work/there" "$work/back"
}

with_kernel_target() {
	check "info on the kernel's target" "$isolane" info "$uri"
	check "info as JSON" "$isolane" info --json "$uri"
	check "copy to the kernel's target and back" there_and_back
	check "bench --verify 4k" "$isolane" bench "$uri" --rw randrw --bs 4k --depth 16 --time 3s --verify
	check "bench --verify 64k" "$isolane" bench "$uri" --rw randwrite --bs 64k --depth 8 --time 3s --verify
	check "bench with two lanes" "$isolane" bench "$uri" --rw randread --bs 512 --depth 4 --lanes 2 --time 2s
}

suite_power() {
	local cuts=2 combinations=(disk,kernel,uring disk,isolane,epoll file,kernel,epoll file,isolane,uring)
	[ -z "$long" ] || {
		cuts=25
		combinations+=(disk,kernel,epoll disk,isolane,uring file,kernel,uring file,isolane,epoll)
	}
	guest "$kernel-power" "$kernel" $((120 + 20 * cuts * ${#combinations[@]})) -b "$isolane" -b "$durable" \
		-- power.sh "$cuts" "${combinations[@]}"
}
