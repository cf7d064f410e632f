#!/bin/bash
# capi.sh [FIO_DIR] - volumes of isolane.h under fio: an external engine (crates/isolane-capi/fio) runs its verify jobs.
#
# FIO_DIR has the sources of the installed fio, of the same version, after `./configure`; without it the script skips with
# status 0. Needs target/release/isolane and target/release/libisolane.so. The closing line is `N passed, N failed`.
set -u
. "$(dirname "$0")/lib.sh"
fio_dir=${1:-${FIO_DIR-}}
capi=$tests/../crates/isolane-capi
libraries=$(cd "$(dirname "$isolane")" && pwd)
size=64M engine=$work/isolane.so

skip() { echo "skipped: $1"; exit 0; }
[ -n "$fio_dir" ] || skip "no FIO_DIR: unpack the sources of $(fio --version), run ./configure, and name the directory"
[ -e "$fio_dir/config-host.h" ] || skip "$fio_dir/config-host.h is missing; run ./configure there"
version=$(cd "$fio_dir" && sed -n 's/^DEF_VER=//p' FIO-VERSION-GEN)
[ "$version" = "$(fio --version)" ] || skip "$fio_dir has $version, and $(fio --version) is installed"

compiles() { # CC ARGUMENT...
	cc -O2 -Wall -Werror "$@" -I "$capi/include" -L "$libraries" -lisolane -Wl,-rpath,"$work"
}
engine_compiles() {
	ln -s "$libraries/libisolane.so" "$work/libisolane.so.0" &&
		compiles -shared -fPIC -D_GNU_SOURCE -include "$fio_dir/config-host.h" -I "$fio_dir" "$capi/fio/isolane.c" -o "$engine"
}
is_short() { [ "$(wc -l < "$capi/fio/isolane.c")" -le 300 ]; }
limited() { timeout -k 5 60 "$@"; }
run_fio() { # VOLUME [OPTION...]
	(cd "$work" && limited fio --ioengine="external:$engine" --uri="$1" --name=verify "${@:2}")
}
verify() { # VOLUME [OPTION...]
	run_fio "$1" --rw=randrw --bsrange=512-64k --bs_unaligned=0 --blockalign=512 --iodepth=16 --size=16M \
		--verify=crc32c --verify_backlog=256 --verify_fatal=1 --randrepeat=0 --fsync=64 --group_reporting "${@:2}"
}
four_jobs() { # VOLUME: of one process, with one volume
	verify "$1" --thread --numjobs=4 --offset_increment=16M
}
keeps_data() { # in a file, from one process to the next
	run_fio "$work/kept.img,size=$size" --rw=randwrite --bs=4k --size=16M --iodepth=8 --verify=crc32c --do_verify=0 --end_fsync=1 &&
		run_fio "$work/kept.img" --rw=randwrite --bs=4k --size=16M --iodepth=8 --verify=crc32c --verify_only
}
remote() { echo "nvme+tcp://127.0.0.1:$port/$nqn?nsid=1"; }
survives_restart_of_target() {
	local fio
	verify "$(remote)" --time_based --runtime=6 > "$work/fio.out" 2>&1 & fio=$!
	sleep 1; restart_target remote KILL || return 1
	sleep 1; restart_target remote TERM || return 1
	wait $fio || { tail -n 20 "$work/fio.out"; return 1; }
}
rejects() { # TEXT VOLUME...
	! run_fio "${@:2}" --rw=read --size=1M > "$work/out" 2>&1 && grep -qF "$1" "$work/out" || { cat "$work/out"; return 1; }
}
reports_failed_writes() {
	rejects 'cannot open missing.img: no such file' missing.img &&
		rejects 'unknown kind "raid5"' raid5:a &&
		! run_fio "fault:10:mem:$size,on=write" --rw=write --size=1M > "$work/out" 2>&1 &&
		grep -q 'bytes at [0-9]*: write failed: ' "$work/out" || { cat "$work/out"; return 1; }
}
reads_cache() { # VOLUME
	limited "$work/kv_cache" "$1" | grep '^64 blocks of 64 KiB in '
}

status=0
check "the engine has at most 300 lines" is_short || status=1
check "the engine compiles against the sources of fio" engine_compiles || exit 1
check "kv_cache.c compiles" compiles -std=c11 "$capi/examples/kv_cache.c" -o "$work/kv_cache" || status=1
for volume in "mem:$size" "mem:$size,block-size=4096" "$work/file.img,size=$size" "$work/buffered.img,size=$size,buffered" \
	"stripe:64k:mem:32M;($work/a.img,size=32M)" "mirror:($work/m1.img,size=65M);($work/m2.img,size=65M),bitmap=$work/bitmap,create=yes" \
	"delay:100us:mem:$size"; do
	case $volume in *block-size=4096) options=(--bsrange=4k-64k --blockalign=4k);; *) options=();; esac
	check "fio verify, four jobs: ${volume//$work\//}" verify "$volume" --thread --numjobs=4 --offset_increment=16M "${options[@]}" || status=1
done
check "fio verify in a process of its own: file" verify "$work/file.img" || status=1
check "fio verify with durable writes: file" verify "$work/file.img" --durable=1 || status=1
check "a file has the data of an earlier process" keeps_data || status=1
check "fio names a volume that does not open, and a write that fails" reports_failed_writes || status=1
port=$(free_port)
start_target remote "$port" "$work/remote.img,size=$size" || exit 1
check "fio verify, four jobs: volume of a target" four_jobs "$(remote)" || status=1
check "fio verify, four jobs: volume of a target, through an engine" env ISOLANE_BIN="$isolane" XDG_RUNTIME_DIR="$work" \
	bash -c "$(declare -f limited run_fio verify four_jobs); work='$work' engine='$engine'; four_jobs '$(remote)&via=engine'" || status=1
check "fio verify continues through restarts of the target" survives_restart_of_target || status=1
check "64 blocks of 64 KiB in one batch: file" reads_cache "$work/file.img" || status=1
check "64 blocks of 64 KiB in one batch: volume of a target" reads_cache "$(remote)" || status=1
check "the target ends cleanly" end_target remote TERM || status=1
exit $status
