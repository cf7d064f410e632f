# Sourced by the suites that run outside of a guest: a work directory, targets, guests with a time
# limit, and the count of named checks.
#
# Everything listens on free loopback ports. All processes end with the suite.

. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
isolane=${ISOLANE_BIN:-$tests/../target/release/isolane}
durable=${DURABLE:-$tests/../target/release/durable}
logs=${LOGS:-$(mktemp -d "${TMPDIR:-/tmp}/isolane-logs.XXXXXX")}
work=$(mktemp -d "${TMPDIR:-/tmp}/isolane-suite.XXXXXX")
mkdir -p "$logs"
nqn=nqn.2014-08.org.nvmexpress:uuid:15015015-0000-4000-8000-000000000001
declare -A target_pid=() target_arguments=()
serve_options=()   # of all targets

end_targets() { # that this shell still has running
	local name
	exec 2> /dev/null    # bash would report each killed job
	for name in "${!target_pid[@]}"; do kill -9 "${target_pid[$name]}"; done
	wait
}
finish() {
	end_targets
	rm -rf "$work" "$check_log"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

start_target() { # NAME PORT OPTION...: returns when it listens
	local name=$1 port=$2; shift 2
	target_arguments[$name]="$port $*"
	start_target_with "$name" "$@" "${serve_options[@]}" --listen "127.0.0.1:$port" --advertise "10.0.2.2:$port" --nqn "$nqn"
}

start_target_with() { # NAME OPTION...: with these options only
	local name=$1; shift
	: > "$logs/target-$name.out"
	"$isolane" serve "$@" < /dev/null > "$logs/target-$name.out" 2>> "$logs/target-$name.log" &
	target_pid[$name]=$!
	wait_for 30 listens_or_ended "$name" && grep -q '^listening on ' "$logs/target-$name.out" && return 0
	echo "target $name does not listen; its log ends:"; tail -n 20 "$logs/target-$name.log"
	return 1
}

# ---- authentication: used by the suites of Linux and of SPDK --------------------------------
auth_host=nqn.2014-08.org.example:auth-host

# Keys of three lengths and transforms, and a key that no side has.
make_keys() {
	local at side lengths=(32 48 64) hashes=(none sha256 sha512)
	for at in 0 1 2; do
		for side in host target; do
			"$isolane" key gen "$work/$side-$at.key" --length "${lengths[at]}" --hash "${hashes[at]}" || return 1
		done
	done
	"$isolane" key gen "$work/other.key"
}

# Prints HASH GROUP KEY, and the place of the group, for each group once; with --long, with each hash function.
auth_combinations() { # GROUP...
	local hashes=(sha256 sha384 sha512) groups=("$@") g h
	for g in "${!groups[@]}"; do for h in 0 1 2; do
		[ -z "$long" ] && [ $h != $((g % 3)) ] || echo "${hashes[h]} ${groups[g]} $(((g + h) % 3)) $g"
	done; done
}

start_auth_target() { # HASH GROUP KEY: sets $port
	local name=auth-$1-$2
	port=$(free_port)
	printf '%s\n' '[server]' 'mode = "sleep"' 'control-socket = "off"' "auth-hashes = [\"$1\"]" "auth-groups = [\"$2\"]" \
		'auth-within = "10min"' \
		"advertise = [\"10.0.2.2:$port\"]" '[[port]]' 'name = "guest"' "listen = \"127.0.0.1:$port\"" > "$work/$name.toml"
	printf '%s\n' '[[host]]' 'name = "linux"' "nqn = \"$auth_host\"" "auth-key = \"file:$work/host-$3.key\"" \
		"auth-target-key = \"file:$work/target-$3.key\"" '[[subsystem]]' "nqn = \"$nqn\"" 'ports = ["guest"]' \
		'hosts = ["linux"]' '[[subsystem.namespace]]' 'nsid = 1' 'volume = "mem:16M"' >> "$work/$name.toml"
	start_target_with "$name" --config "$work/$name.toml"
}

listens_or_ended() { # NAME
	grep -q '^listening on ' "$logs/target-$1.out" || ! kill -0 "${target_pid[$1]}"
}

end_target() { # NAME SIGNAL: returns the exit status of the target
	local pid=${target_pid[$1]}
	unset "target_pid[$1]"
	kill "-$2" "$pid" 2>/dev/null
	wait "$pid" 2>/dev/null
}

restart_target() { # NAME SIGNAL: on the same port, with the same volumes
	end_target "$1" "$2"
	sleep "0.$((RANDOM % 10))"
	# shellcheck disable=SC2086
	start_target "$1" ${target_arguments[$1]}
}

guest() { # NAME KERNEL SECONDS [guest.sh OPTION...] -- SCRIPT [ARG...]: run a script of kernel/guest/
	local name=$1 failure=() crash f
	run_guest "$@" && return 0
	if crash=$(guest_crash "$name"); then
		echo "repeating $name once, because its kernel crashed: $crash"
		printf 'first run: %s\n' "${failure[@]}"
		for f in asks kernel; do mv "$logs/$name.$f" "$logs/$name.crashed.$f"; done 2> /dev/null
		run_guest "$@" && return 0
	fi
	printf '%s\n' "${failure[@]}"
	show_end 40 "$logs/$name.kernel"; show_end 20 "$logs/$name.asks"
	for f in "${!target_pid[@]}"; do show_end 20 "$logs/target-$f.log"; done
	return 1
}

# Prints the lines of the guest. The first failure and all later lines go to $failure instead.
run_guest() {
	local name=$1 kernel=$2 limit=$3 options=() f line status; shift 3
	while [ "$1" != -- ]; do options+=("$1"); shift; done; shift
	for f in "$tests"/kernel/guest/*; do options+=(-f "$f:/guest/${f##*/}"); done
	options+=(-f "$tests/checks.sh:/guest/checks.sh")
	rm -f "$work/answers"; mkfifo "$work/answers"
	exec 6<> "$work/answers"
	failure=()
	while IFS= read -r line; do
		case $line in
			@*) on_ask "${line#@}" >> "$logs/$name.asks" 2>&1 6>&- && echo done >&6 || echo "cannot $line" >&6;;
			*) if [ ${#failure[@]} = 0 ] && [ "${line#not ok}" = "$line" ]; then echo "$line"; else failure+=("$line"); fi;;
		esac
	done < <("$tests/kernel/guest.sh" -k "$kernel" -t "$limit" -l "$logs/$name.kernel" "${options[@]}" \
		"$tests/kernel/guest/$1" "${@:2}" < "$work/answers" 2>&1; echo $? > "$work/status")
	exec 6>&-
	status=$(cat "$work/status")
	[ "$status" = 0 ] || failure+=("not ok guest $name ended with status $status (124: out of time, 125: died)")
	[ ${#failure[@]} = 0 ]
}

guest_crash() { # NAME: prints the line of the console log in which the guest's kernel reports a bug of its own
	grep -aEm 1 'Oops|BUG: |Kernel panic|Voluntary context switch within RCU' "$logs/$1.kernel"
}

show_end() { # LINES FILE
	[ -s "$2" ] || return 0
	echo "    ${2##*/} ends:"; tail -n "$1" "$2" | cut -c -200 | sed 's/^/    /'
}

on_ask() { echo "unknown request: $1"; return 1; }   # a suite overrides it to serve requests of its guest

tally() { # FILE...: lists failed checks and prints the closing line
	local passed failed
	passed=$(cat "$@" | grep -c '^ok ')
	failed=$(cat "$@" | grep -c '^not ok ')
	[ "$failed" = 0 ] || { echo "failed:"; grep -h '^not ok ' "$@" | sed 's/^/  /'; }
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}
