//! Targets for the parsers of `/proc` and `/sys`, one for each, and of trace events.
//!
//! Invariant: no text makes a parser panic.

use isolane_inspect::deep::{decode_event, summarize};
use isolane_inspect::system::*;

use crate::Target;

/// Expands to the target of a parser, with samples of its text.
macro_rules! parser {
    ($name:literal, $decode:expr, $($sample:expr),+) => {
        Target {
            name: $name,
            check: |bytes| {
                let _ = $decode(&String::from_utf8_lossy(bytes));
            },
            corpus: || vec![$($sample.as_bytes().to_vec()),+],
        }
    };
}

const HANDLER: &str = "\
    a-7 [001] d.h.. 1.000001: irq_handler_entry: irq=42 name=virtio3-tx
    a-7 [001] d.h.. 1.000012: irq_handler_exit: irq=42 ret=handled
";
const SWITCH: &str = "\
    b c-8 [001] d..2. 1.100000: sched_switch: prev_comm=b c prev_pid=8 prev_prio=120 prev_state=S ==> next_comm=a next_pid=7 next_prio=120
    a-7 [001] d..2. 1.200000: sched_switch: prev_comm=a prev_pid=7 prev_prio=120 prev_state=R+ ==> next_comm=b c next_pid=8 next_prio=120
";
const WAKEUP: &str = "b c-8 [000] dNh3. 1.300000: sched_wakeup: comm=a pid=7 prio=115 target_cpu=001\n";
const ISSUE: &str = "\
    dd-9 [000] ..... 1.400000: block_rq_issue: 254,0 RA 16384 () 12580504 + 32 be,0,4 [dd]
    b c-8 [001] ..s.. 1.500000: block_rq_complete: 254,0 RA () 12580504 + 32 be,0,4 [0]
";
const LOST: &str = "CPU:1 [LOST 12 EVENTS]\n";

/// All parsers.
pub(crate) const TARGETS: &[Target] = &[
    parser!("system-number", decode_number, "18446744073709551615\n", "0"),
    parser!("system-cpu-list", decode_cpu_list, "0-3,8\n", "0,2-16383"),
    parser!("system-interrupts", decode_interrupts, "  CPU0  CPU1\n 9: 1 0  IO-APIC  9-edge  acpi\nERR: 3\n"),
    parser!("system-counts", decode_counts, "0,1,18446744073709551615\n"),
    parser!(
        "system-cpu-times",
        decode_cpu_times,
        "cpu  1 2 3 4 5 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\nintr 9\n"
    ),
    parser!("system-schedstat", decode_schedstat, "368588 54641 1\n"),
    parser!(
        "system-task",
        decode_task_stat,
        "31 (a) b) R 1 1 1 0 -1 4 1 0 0 0 5 7 0 0 20 0 1 0 19 31 40 18 9 9 9 0 0 0 0 0 0 0 0 0 17 5 0 0\n"
    ),
    parser!(
        "system-status",
        |text| decode_status_field(text, "VmSwap").map(str::to_owned),
        "Name:\tcat\nVmSwap:\t 4 kB\n"
    ),
    parser!("system-limits", decode_file_limit, "Limit Soft\nMax open files  1024 4096 files\n"),
    parser!("system-disks", decode_diskstats, " 259 1 nvme0n1 1 2 3 4 5 6 7 8 9 10 11\n"),
    parser!("system-process-io", decode_process_io, "rchar: 6976\nread_bytes: 4096\nwrite_bytes: 512\n"),
    parser!("system-softnet", decode_softnet, "0224d778 1 4 0 0 0 0 0 0 2 0 0 3 0 0\n"),
    parser!("system-protocols", decode_protocol_counters, "Tcp: MaxConn OutSegs\nTcp: -1 71045605\n"),
    parser!("system-cgroup", decode_cgroup_membership, "3:cpu,cpuacct:/a/b\n0::/c\n"),
    parser!(
        "system-mounts",
        decode_cgroup_mounts,
        "41 31 0:38 / /sys/fs/cgroup/a\\040b rw shared:1 - cgroup2 cgroup2 rw,nsdelegate\n"
    ),
    parser!("system-counter", |text| decode_counter(text, "nr_throttled"), "nr_periods 0\nnr_throttled 7\n"),
    parser!("system-pressure", decode_pressure, "some avg10=91.09 total=7645\nfull avg10=0.50 total=2\n"),
    parser!("system-cpu-mask", decode_cpu_mask, "00000001,80000005\n"),
    parser!("system-numbers", decode_numbers, "4096\t131072 6291456\n"),
    Target {
        name: "system-pci-config",
        check: |bytes| {
            let _ = decode_pci_config(bytes);
        },
        corpus: || vec![pci_config()],
    },
    parser!("system-choice", decode_choice, "always [madvise] never\n"),
    parser!("system-cpu-max", decode_cpu_max, "150000 100000\n", "max 100000\n"),
    parser!("system-cfs-quota", decode_cfs_quota, "-1\n", "50000\n"),
    parser!("system-tcp-memory", decode_tcp_memory, "sockets: used 9\nTCP: inuse 4 orphan 0 mem 3\n"),
    parser!(
        "system-volume-file",
        decode_volume_file,
        "major 259\nminor 1\nsize 1\nallocated 2\nblocks 3\navailable_blocks 4\nfile_system 5\ndirect_io_alignment 4\n"
    ),
    parser!("system-card-settings", decode_settings, "rx 256\nrx_max 4096\n", "unsupported\n"),
    Target {
        name: "system-ethtool",
        check: |bytes| {
            let parts = [CardPart::Rings, CardPart::Coalescing, CardPart::Features, CardPart::Link];
            let Some((first, reply)) = bytes.split_first() else { return };
            let _ = decode_ethtool(parts[usize::from(*first) % parts.len()], reply);
        },
        corpus: ethtool_replies,
    },
    parser!("system-node", decode_node, "-1\n", "1\n"),
    parser!("system-routes", decode_routes, "Iface\neth0 0000000A 0 0001 0 0 0 000000FF 0 0 0\n"),
    parser!(
        "system-ipv6-routes",
        decode_ipv6_routes,
        "fd000000000000000000000000000000 40 0 00 0 00000100 00000001 00000000 00000001 eth1\n"
    ),
    parser!("trace-event", |text| decode_event(text).is_ok(), HANDLER, SWITCH, WAKEUP, ISSUE, LOST),
    Target {
        name: "trace-text",
        check: |bytes| {
            let measured = summarize(bytes, &[7], 1.0);
            assert!(
                measured.handlers.len() <= 64 && measured.tasks.len() <= 64 && measured.disks.len() <= 64
            );
        },
        corpus: || vec![[HANDLER, SWITCH, WAKEUP, SWITCH, ISSUE, LOST, SWITCH].concat().into_bytes()],
    },
    parser!("system-device-number", decode_device_number, "259:0\n"),
];

/// A number, and a set of one bit with a name, for each part.
fn ethtool_replies() -> Vec<Vec<u8>> {
    let attribute = |kind: u16, value: &[u8]| {
        let len = 4 + value.len() as u16;
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let bits = attribute(3, &attribute(1, &attribute(2, b"10000baseT/Full\0")));
    let sets = (2..5).map(|kind| attribute(kind, &bits)).collect::<Vec<_>>().concat();
    let numbers = attribute(5, &[1, 2, 3, 4]);
    (0..4).map(|part| [&[part], &*numbers, &*sets].concat()).collect()
}

/// Configuration space with the PCI Express capability at 0x40.
fn pci_config() -> Vec<u8> {
    let mut bytes = vec![0; 256];
    bytes[0x06] = 0x10;
    bytes[0x34] = 0x40;
    bytes[0x40] = 0x10;
    bytes
}
