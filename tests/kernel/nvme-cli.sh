#!/bin/bash
# nvme-cli.sh - get the nvme-cli of Debian sid, because Debian 12's generates no keys for
# authentication. Prints the name of a tar file for the root directory of a guest: /opt/nvme-cli has
# the program, its shared libraries, and the loader, and the guest's `nvme` then is this one.
#
# Needs apt and a Debian mirror, once: the file stays in GUEST_CACHE (~/.cache/isolane-guest).
set -euo pipefail
cache=${GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/isolane-guest}
tar=$cache/nvme-cli-sid.tar
[ ! -s "$tar" ] || { echo "$tar"; exit 0; }

mkdir -p "$cache"
w=$(mktemp -d "$cache/nvme-cli.XXXXXX"); trap 'rm -rf "$w"' EXIT
mkdir -p "$w"/{lists,archives}/partial "$w/root" "$w/guest/opt/nvme-cli" "$w/guest/usr/bin"
echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian sid main' > "$w/sources"
# Own directories: the system does not change.
apt=(-q -o "Dir::Etc::sourcelist=$w/sources" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$w/lists"
	-o "Dir::Cache=$w" -o APT::Sandbox::User=root)
packages=(nvme-cli libnvme1t64 libc6 libjson-c5 libssl3t64 libkeyutils1 zlib1g libzstd1)
cd "$w"
{ apt-get "${apt[@]}" update && apt-get "${apt[@]}" download "${packages[@]/%//sid}"; } > download.log 2>&1 ||
	{ tail -n 5 download.log >&2; echo "nvme-cli.sh: cannot download nvme-cli of Debian sid" >&2; exit 1; }
for package in *.deb; do dpkg -x "$package" root; done
libraries=root/usr/lib/x86_64-linux-gnu loader=ld-linux-x86-64.so.2
"$libraries/$loader" --library-path "$libraries" --list root/usr/sbin/nvme | sed -n 's,.* => \([^ ]*\) .*,\1,p' |
	xargs cp -L -t guest/opt/nvme-cli root/usr/sbin/nvme
printf '#!/bin/sh\nd=/opt/nvme-cli\nexec $d/%s --library-path $d $d/nvme "$@"\n' "$loader" > guest/usr/bin/nvme
chmod 755 guest/usr/bin/nvme
tar -c -f "$w/tar" --owner=0 --group=0 -C guest opt usr
mv "$w/tar" "$tar"
echo "$tar"
