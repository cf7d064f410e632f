#!/bin/bash
# tshark.sh DIRECTORY - check the captures that the tests wrote with Wireshark's dissector.
#
# No packet may be malformed, no digest wrong, and the golden captures contain every PDU type.
set -u
. "$(dirname "$0")/checks.sh"
work=$(mktemp -d "${TMPDIR:-/tmp}/tshark.XXXXXX")
trap 'rm -rf "$check_log" "$work"' EXIT

fields() { # FILE FIELD...: one line per packet
	local file=$1 options=() field; shift
	for field in "$@"; do options+=(-e "$field"); done
	tshark -r "$file" -o nvme-tcp.check_hdgst:TRUE -o nvme-tcp.check_ddgst:TRUE \
		-T fields -E occurrence=a "${options[@]}" 2>/dev/null
}
decodes() { # FILE
	fields "$1" _ws.malformed _ws.expert.message nvme-tcp.hdgst.status nvme-tcp.ddgst.status > "$work/fields" || return 1
	[ -s "$work/fields" ] || { echo "no packets"; return 1; }
	# Digest status: 0 is bad, 1 is good, empty without a digest.
	awk -F '\t' 'tolower($1 $2) ~ /malformed/ || ("," $3 "," $4 ",") ~ /,0,/ { print "packet " NR ": " $0; bad = 1 }
		END { exit bad }' "$work/fields" && return 0
	tshark -r "$1" -V 2>/dev/null | grep -iB40 malformed | tail -n 60
	return 1
}
has_every_pdu() {
	local types
	types=$(for file in "$@"; do fields "$file" nvme-tcp.type; done | tr ',' '\n' | grep . | sort -nu | xargs)
	echo "types $types"
	[ "$types" = "0 1 2 3 4 5 6 7 9" ]
}

files=("$1"/*.pcap)
[ -e "${files[0]}" ] || { echo "not ok no captures in $1: run cargo test first"; exit 1; }
status=0
for file in "${files[@]}"; do check "tshark decodes $(basename "$file")" decodes "$file" || status=1; done
check "the golden captures contain every PDU type" has_every_pdu "$1"/golden-*.pcap || status=1
exit $status
