#!/bin/bash
# tshark.sh FOLDER - lets Wireshark's dissector judge the captures that the tests wrote.
#
# No packet may be malformed, no digest bad, and the golden captures together hold every kind of PDU.
set -u
. "$(dirname "$0")/checks.sh"
work=$(mktemp -d "${TMPDIR:-/tmp}/tshark.XXXXXX")
trap 'rm -rf "$check_log" "$work"' EXIT

fields() { # FILE FIELD...: one line a packet
	local file=$1 options=() field; shift
	for field in "$@"; do options+=(-e "$field"); done
	tshark -r "$file" -o nvme-tcp.check_hdgst:TRUE -o nvme-tcp.check_ddgst:TRUE \
		-T fields -E occurrence=a "${options[@]}" 2>/dev/null
}
decodes() { # FILE
	fields "$1" _ws.malformed _ws.expert.message nvme-tcp.hdgst.status nvme-tcp.ddgst.status > "$work/fields" || return 1
	[ -s "$work/fields" ] || { echo "no packets"; return 1; }
	# Status 0 of a digest is bad, 1 is good; none is where none was negotiated.
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
check "the golden captures hold every kind of PDU" has_every_pdu "$1"/golden-*.pcap || status=1
exit $status
