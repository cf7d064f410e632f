# The suites of interop.sh. Each runs in its own shell, with $kernel set, and prints the lines of
# its checks. The scripts of the guests are in guest/.
tools=()    # options of guest.sh for another nvme-cli

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
	guest "$kernel-meet" "$kernel" 90 "${tools[@]}" -- meet.sh 10.0.2.2 "$port" "$nqn"
	check "the target ends with status 0 on SIGTERM" end_target "$kernel-meet" TERM
}

# The suites that run most commands of nvme-cli, with a newer one.
suite_tools() {
	local tar
	tar=$("$tests/kernel/nvme-cli.sh") || { echo "not ok get a newer nvme-cli"; return; }
	tools=(-f "$tar:/nvme-cli.tar")
	suite_meet
	suite_access
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

# ---- targets with a configuration file ----
linux_host=nqn.2014-08.org.example:linux
other_host=nqn.2014-08.org.example:other

configuration() { # PORT...: the tables of server, hosts, and ports; a port is NAME=NUMBER
	local port
	printf '%s\n' '[server]' 'mode = "sleep"' "control-socket = \"$work/control.sock\"" "advertise = [\"10.0.2.2:${1#*=}\"]" \
		'[[host]]' 'name = "linux"' "nqn = \"$linux_host\"" '[[host]]' 'name = "other"' "nqn = \"$other_host\""
	for port; do printf '%s\n' '[[port]]' "name = \"${port%=*}\"" "listen = \"127.0.0.1:${port#*=}\""; done
}
subsystem() { # NQN PORTS HOSTS: the last two as lists of TOML
	printf '%s\n' '[[subsystem]]' "nqn = \"$1\"" "ports = $2" "hosts = $3"
}
namespace() { # NSID VOLUME [LINE...]
	printf '%s\n' '[[subsystem.namespace]]' "nsid = $1" "volume = \"$2\"" "${@:3}"
}
control() { "$isolane" ctl --socket "$work/control.sock" "$@"; }
apply() { "$isolane" config apply --socket "$work/control.sock" "$work/target.toml"; }

suite_access() {
	local left right; left=$(free_port) right=$(free_port)
	file() { # PORT...
		local ports; printf -v ports '"%s", ' "${@%=*}"
		configuration "$@"
		subsystem "$nqn" "[${ports%, }]" '["linux", "other"]'
		namespace 1 "$work/first,size=64M"
		namespace 2 "$work/second,size=64M"
		namespace 3 "$work/third,size=64M" 'hosts = ["other"]'
	}
	apply_ports() {
		file "$@" > "$work/target.toml" && apply
	}
	seen_by_other() { "$isolane" info --json --host-nqn "$other_host" "nvme+tcp://127.0.0.1:$left/$nqn" | grep -c '"nsid"'; }
	on_ask() {
		case $1 in
			hide) control namespace set 2 hosts=other && [ "$(seen_by_other)" = 3 ];;
			show) control namespace set 2 hosts=;;
			change-hidden)
				control namespace resize 3 96M && control namespace resize 2 96M && control namespace resize 2 64M --shrink &&
					control namespace read-only 3 && control namespace read-only 3 --off && control namespace remove 3 &&
					namespace 3 "$work/third,size=64M" 'hosts = ["other"]' >> "$work/target.toml" && apply;;
			close-right) apply_ports left="$left";;
			open-right) apply_ports left="$left" right="$right";;
			add-subsystems)
				control subsystem add "$nqn-hidden" ports=left hosts=other && control subsystem add "$nqn-more" ports=left hosts=any;;
			remove-subsystems) control subsystem remove "$nqn-hidden" && control subsystem remove "$nqn-more";;
		esac
	}
	file left="$left" right="$right" > "$work/target.toml"
	start_target_with "$kernel-access" --config "$work/target.toml" || { echo "not ok start a target"; return; }
	guest "$kernel-access" "$kernel" 240 "${tools[@]}" -- access.sh 10.0.2.2 "$left" "$right" "$nqn" "$linux_host"
	check "the target ends with status 0 after the changes" end_target "$kernel-access" TERM
}

suite_subsystems() {
	local port rounds=3 queues=2; port=$(free_port)
	[ -z "$long" ] || rounds=30
	file() {
		local n
		configuration guest="$port" | sed "s/^\[server\]/&\nio-queues = $queues/"
		subsystem "$nqn" '["guest"]' '["linux"]'
		namespace 1 "$work/disk,size=64M"
		for n; do
			subsystem "$nqn-$n" '["guest"]' '["linux"]'
			namespace 1 "$work/disk-$n,size=16M"
		done
	}
	apply_file() { file "$@" > "$work/target.toml" && apply; }
	places=(a,1 a,2 b,1 b,2)
	unmap() {
		local place
		for place in $(shuf -e "${places[@]}"); do
			control namespace --subsystem "$nqn-${place%,*}" remove "${place#*,}" | tee /dev/stderr | grep -q 'is closed' || return
		done
	}
	map() { # ROUND: see guest/subsystems.sh for the UUIDs
		local volumes at place volume
		volumes=($(shuf -i 1-4))
		for at in $(shuf -i 0-3); do
			place=${places[at]} volume=${volumes[at]}
			control namespace --subsystem "$nqn-${place%,*}" add "$(printf '%s,size=%sk,nsid=%s,uuid=00000000-0000-4000-8000-000000%02d%02d%02d' \
				"$work/volume-$volume" $((256 * volume)) "${place#*,}" "$1" $((at + 1)) "$volume")" || return
		done
	}
	on_request() {
		case $1 in
			add-ten) apply_file 0 1 2 3 4 5 6 7 8 9;;
			ten-written) for n in 0 1 2 3 4 5 6 7 8 9; do [ "$(head -n 1 "$work/disk-$n")" = "$nqn-$n" ] || return; done;;
			remove-ten) apply_file;;
			add-one)
				control subsystem add "$nqn-$2" ports=guest hosts=linux &&
					control namespace --subsystem "$nqn-$2" add "$work/disk-$2,size=16M";;
			remove-one) control subsystem remove "$nqn-$2";;
			add-two) control subsystem add "$nqn-a" ports=guest hosts=linux && control subsystem add "$nqn-b" ports=guest hosts=linux;;
			unmap) unmap;;
			map) map "$2";;
			queues)
				queues=$2; file > "$work/target.toml"
				end_target "$kernel-subsystems" TERM && start_target_with "$kernel-subsystems" --config "$work/target.toml";;
		esac
	}
	# shellcheck disable=SC2086
	on_ask() { on_request $1; }
	file > "$work/target.toml"
	start_target_with "$kernel-subsystems" --config "$work/target.toml" || { echo "not ok start a target"; return; }
	guest "$kernel-subsystems" "$kernel" $((180 + 20 * rounds)) -- subsystems.sh 10.0.2.2 "$port" "$nqn" "$linux_host" "$rounds"
	check "the target ends with status 0 after all changes" end_target "$kernel-subsystems" TERM
}

# Volume 1 is at another target, which is stopped for a while.
suite_stalled() {
	local port remote; port=$(free_port) remote=$(free_port)
	start_target "$kernel-remote" "$remote" mem:64M &&
		start_target "$kernel-stalled" "$port" "nvme+tcp://127.0.0.1:$remote/$nqn,nsid=1" "$work/disk,size=64M,nsid=2" \
			--control-socket "$work/control.sock" || { echo "not ok start two targets"; return; }
	on_ask() {
		case $1 in
			stall) kill -STOP "${target_pid[$kernel-remote]}";;
			resume) kill -CONT "${target_pid[$kernel-remote]}";;
			*) "$isolane" ctl --socket "$work/control.sock" namespace "$1" 1;;
		esac
	}
	guest "$kernel-stalled" "$kernel" 420 -- stalled.sh 10.0.2.2 "$port" "$nqn"
	kill -CONT "${target_pid[$kernel-remote]}"
	check "the target ends with status 0 after the stall" end_target "$kernel-stalled" TERM
}

suite_upgrade() {
	local port count=5 control="$work/control.sock"; port=$(free_port)
	[ -z "$long" ] || count=20
	start_target "$kernel-upgrade" "$port" "$work/disk,size=64M" --control-socket "$control" ||
		{ echo "not ok start a target"; return; }
	control() { "$isolane" ctl --socket "$control" "$@"; }
	on_ask() {
		case $1 in
			upgrade) control upgrade;;
			broken) control upgrade /bin/false 2>&1 | tee /dev/stderr | grep -q 'the rehearsal failed';;
			changed)
				control namespace add "$work/second,size=64M" && control upgrade &&
					control status | tee /dev/stderr | grep -q "$work/second";;
		esac
	}
	guest "$kernel-upgrade" "$kernel" $((90 + 3 * count)) -- upgrade.sh 10.0.2.2 "$port" "$nqn" "$count"
	check "the target ends with status 0 after its upgrades" end_target "$kernel-upgrade" TERM
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

# Each hash function with each group, one way and both ways. Without --long, each group once, and without the largest
# two, which take an emulated guest minutes.
suite_auth() {
	local groups=(null ffdhe2048 ffdhe3072 ffdhe4096)
	local port hash group place key ways combinations=() options=()
	[ -z "$long" ] || groups+=(ffdhe6144 ffdhe8192)
	check "generate keys" make_keys || return
	while read -r hash group key place <&3; do
		start_auth_target "$hash" "$group" "$key" || { echo "not ok start a target"; return; }
		for ways in 1 2; do
			[ -n "$long" ] || [ $ways = $((place % 2 + 1)) ] || continue
			combinations+=("$port,$hash,$group,$key,$ways")
		done
	done 3< <(auth_combinations "${groups[@]}")
	for key in host-0 host-1 host-2 target-0 target-1 target-2 other; do options+=(-f "$work/$key.key:/guest/$key.key"); done
	port=$(free_port)
	# shellcheck disable=SC2086
	on_ask() { auth_with_kernel_target $1; }
	guest "$kernel-auth" "$kernel" $((120 + 60 * ${#combinations[@]})) -p "$port:4420" "${options[@]}" \
		-- auth.sh 10.0.2.2 "$nqn" "$auth_host" "${combinations[@]}"
}

# The keys change while the host is connected.
suite_keys() {
	local port side age options=(); port=$(free_port)
	for side in host target; do for age in old new; do
		check "generate the $age key of the $side" "$isolane" key gen "$work/$side-$age.key" || return
		options+=(-f "$work/$side-$age.key:/guest/$side-$age.key")
	done; done
	file_keys() { # SIDE AGE...: a list of files, as of `isolane ctl`
		local age list=; for age in "${@:2}"; do list+=,file:$work/$1-$age.key; done
		echo "${list#,}"
	}
	configuration guest="$port" | sed "s,^nqn = \"$linux_host\",&\nauth-key = \"$(file_keys host old)\"\nauth-target-key = \"$(file_keys target old)\"," \
		> "$work/target.toml"
	{ subsystem "$nqn" '["guest"]' '["linux"]'; namespace 1 "$work/disk,size=64M"; } >> "$work/target.toml"
	on_request() {
		case $1 in
			host-keys) control host set linux "auth-key=$(file_keys host "${@:2}")";;
			target-keys) control host set linux "auth-target-key=$(file_keys target "${@:2}")";;
			disconnect) control disconnect "$linux_host";;
		esac
	}
	# shellcheck disable=SC2086
	on_ask() { on_request $1; }
	start_target_with "$kernel-keys" --config "$work/target.toml" || { echo "not ok start a target"; return; }
	guest "$kernel-keys" "$kernel" 300 "${options[@]}" -- keys.sh 10.0.2.2 "$port" "$nqn" "$linux_host"
	check "the target ends with status 0 after its keys changed" end_target "$kernel-keys" TERM
}

auth_with_kernel_target() { # connect COMBINATION, or refused
	local uri="nvme+tcp://127.0.0.1:$port/$nqn" key ways options
	options=(--host-nqn "$auth_host")
	case $1 in
		connect)
			IFS=, read -r _ _ _ key ways <<< "$2"
			options+=(--key "$work/host-$key.key")
			[ "$ways" = 1 ] || options+=(--ctrl-key "$work/target-$key.key")
			"$isolane" bench "$uri" "${options[@]}" --rw randread --bs 4k --depth 4 --lanes 2 --time 300ms;;
		refused)
			! "$isolane" info "$uri" "${options[@]}" && ! "$isolane" info "$uri" "${options[@]}" --key "$work/other.key" \
				&& ! "$isolane" info "$uri" "${options[@]}" --key "$work/host-2.key" --ctrl-key "$work/other.key";;
	esac
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

suite_disks() {
	local kind host io combinations=(disk,kernel,uring cached,kernel,epoll)
	[ "$kernel" = 6.12 ] || combinations=(disk,isolane,epoll file,kernel,uring)
	[ -z "$long" ] || {
		combinations=()
		for kind in disk file cached; do for host in kernel isolane; do for io in uring epoll; do
			combinations+=("$kind,$host,$io")
		done; done; done
	}
	guest "$kernel-disks" "$kernel" $((120 + 300 * ${#combinations[@]})) -b "$isolane" -b "$durable" -b dmsetup \
		-- disks.sh "${combinations[@]}"
}
