#!/bin/bash
# verify.sh ADDR COMBINATION... - fio writes and verifies through the kernel's host.
# A combination is NAME,PORT,NQN,NSID,BLOCK_SIZE,DEPTH,DIGESTS,QUEUES,TOTAL with DIGESTS of
# none|header|data|both and QUEUES of default|write|poll|write+poll.
ADDR=$1; shift
. /guest/lib.sh
modprobe nvme-tcp

digest_options() {
	case $1 in none) ;; header) echo -g;; data) echo -G;; both) echo -g -G;; esac
}
queue_options() {
	case $1 in default) ;; write) echo -W 1;; poll) echo -P 1;; write+poll) echo -W 1 -P 1;; esac
}
fio_options() { # polled completions need a poll queue
	case $1 in *poll) echo --hipri;; esac
}
combination() {
	attach $(digest_options "$digests") $(queue_options "$queues") || return 1
	verify "$bs" "$depth" "$total" $(fio_options "$queues")
	local status=$?
	detach || { echo "cannot disconnect"; return 1; }
	return $status
}

for c in "$@"; do
	IFS=, read -r name PORT NQN NSID bs depth digests queues total <<< "$c"
	check "fio verify $name bs=$bs depth=$depth digests=$digests queues=$queues $total" combination
done
exit 0
