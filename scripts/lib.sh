# Sourced by the measuring scripts: --help, programs, a work directory, and a target. All processes end
# with the script.
case ${1-} in -h|--help) sed -n '2,/^[^#]/{/^#/p}' "$0"; exit;; esac
set -euo pipefail
release=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}/release
isolane=${ISOLANE_BIN:-$release/isolane}
nqn=nqn.2014-08.org.nvmexpress:uuid:1d1e1d1e-0000-4000-8000-000000000001
work=$(mktemp -d)
trap 'exec 2> /dev/null; kill -KILL $(jobs -p) || true; rm -rf "$work"' EXIT

serve() { # ARGUMENT...: sets target (PID), address, and uri; LIMIT is the maximum number of open files
	(
		${LIMIT:+ulimit -n "$LIMIT"}
		exec "$isolane" --log-level warn serve "$@" --listen 127.0.0.1:0 --nqn "$nqn" > "$work/out" 2> "$work/log"
	) &
	target=$!
	until grep -qs '^listening on ' "$work/out"; do kill -0 "$target" || { cat "$work/log"; exit 1; }; sleep 0.1; done
	address=$(sed -n 's/^listening on \([^ ]*\).*/\1/p' "$work/out" | head -n 1)
	uri=nvme+tcp://$address/$nqn
}
