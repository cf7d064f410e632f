#!/bin/bash
# floor.sh - run the measuring programs briefly: every workload of the floor, and a few rows.
# Asserts no figures.
set -eu
programs=$(dirname "${ISOLANE_BIN:-$(dirname "$0")/../target/release/isolane}")
for work in read4k write4k read128k write128k; do
	for depth in 1 16; do
		echo "$work depth $depth: $("$programs/floor" --work $work --depth $depth --seconds 0.3)"
	done
done
"$programs/floor" --work write128k --depth 4 --connections 3 --unbatched --seconds 0.3
report=$(mktemp -d)/report.json
trap 'rm -r "${report%/*}"' EXIT
"$programs/xtask" bench r4k-qd1 w4k-qd32 segments-qd8 bulk-one file-buffered --peers floor,isolane --samples 1 --seconds 0.5 \
	--no-build --json "$report" --scratch "${report%/*}" > /dev/null
"$programs/xtask" table "$report" --svg "${report%/*}/figures.svg"
! grep errors "$report"
