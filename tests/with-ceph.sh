#!/bin/bash
# with-ceph.sh COMMAND [ARG...] - runs a command beside a Ceph cluster on loopback, which it finds by $CEPH_CONF.
#
# The cluster has a pool `rbd`; its objects are in memory, and it ends with the command. Needs the packages ceph-mon,
# ceph-mgr, ceph-osd, and ceph-common.
set -u
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/ceph-cluster.sh"
trap 'end_cluster; finish' EXIT

{ start_cluster "$work/ceph" && ceph osd pool create rbd 8 && rbd pool init rbd; } > "$work/ceph.out" 2>&1 \
	|| { cat "$work/ceph.out" >&2; exit 1; }
"$@"
