# Named checks for shell suites, sourced both inside guests and outside.
#
# A check prints `ok NAME` or `not ok NAME`; after a failure, the output of its command follows.
# `tally` of lib.sh counts these lines.

check_log=$(mktemp "${TMPDIR:-/tmp}/check.XXXXXX")

check() { # NAME COMMAND...: shows the end of the output if the command fails
	local name=$1 begun=$SECONDS status; shift
	if "$@" > "$check_log" 2>&1; then
		echo "ok $name ($((SECONDS - begun)) s)"
	else
		status=$?
		echo "not ok $name (status $status, $((SECONDS - begun)) s)"
		tail -n 40 "$check_log" | sed 's/^/    /'
		on_check_failed
		return 1
	fi
}

on_check_failed() { :; }   # a suite may override it to print more

wait_for() { # SECONDS COMMAND...: until the command succeeds
	local until=$((SECONDS + $1)); shift
	until "$@" > /dev/null 2>&1; do
		[ $SECONDS -lt $until ] || return 1
		sleep 0.1
	done
}

# Prints a port that is free, and that the kernel gives to no client, so that no other program takes it in the meantime.
free_port() {
	python3 -c '
import random, socket
with open("/proc/sys/net/ipv4/ip_local_port_range") as range_file:
    first_of_clients = int(range_file.read().split()[0])
while True:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", random.randrange(10000, first_of_clients) if first_of_clients > 12000 else 0))
        except OSError:
            continue
        print(listener.getsockname()[1])
        break'
}
