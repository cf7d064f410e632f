//! Memory.

use super::*;

const CASES: &[Case] = &[
    Case {
        id: "mem.huge",
        other: &[],
        good: &[
            ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("/sys/kernel/mm/transparent_hugepage/defrag", "always defer [madvise] never\n"),
        ],
        bad: &[
            ("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
            ("/sys/kernel/mm/transparent_hugepage/defrag", "[always] madvise never\n"),
        ],
    },
    Case {
        id: "mem.limit",
        other: &[],
        good: &[
            ("/proc/self/mountinfo", "41 31 0:38 / /cg rw - cgroup2 cgroup2 rw\n"),
            ("/proc/self/cgroup", "0::/a\n"),
            ("/cg/a/memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n"),
            ("/proc/pressure/memory", "some avg10=1.00 total=6\nfull avg10=0.00 total=2\n"),
        ],
        bad: &[
            ("/cg/a/memory.events", "high 3\nmax 0\noom 0\n"),
            ("/proc/pressure/memory", "some avg10=1.00 total=6\nfull avg10=0.50 total=2\n"),
        ],
    },
    Case {
        id: "mem.limit",
        other: &[],
        good: &[
            ("/proc/self/mountinfo", "41 31 0:38 / /cg rw - cgroup cgroup rw,memory\n"),
            ("/proc/self/cgroup", "4:memory:/a\n"),
            ("/cg/a/memory.failcnt", "0\n"),
            ("/proc/pressure/memory", "some avg10=0.00 total=6\n"),
        ],
        bad: &[("/cg/a/memory.failcnt", "1\n")],
    },
    Case {
        id: "mem.balancing",
        other: &[
            ("/sys/devices/system/node/node0/cpulist", "0-1\n"),
            ("/sys/devices/system/node/node1/cpulist", "2-3\n"),
        ],
        good: &[("/proc/sys/kernel/numa_balancing", "0\n")],
        bad: &[("/proc/sys/kernel/numa_balancing", "1\n")],
    },
];

#[test]
fn checks_memory() {
    CASES.iter().for_each(Case::test);
}

#[test]
fn swapped_target_is_bad() {
    let tree = Tree::new(&[("/proc/7/status", "VmSwap:\t 0 kB\n")]);
    let state = |tree: &Tree| {
        let mut context = Context::new(tree.root(), None).with_snapshot(target(7));
        run(&mut context, &select("mem.swap").unwrap())[0].state
    };
    assert_eq!(state(&tree), State::Good);
    tree.write_bytes("/proc/7/status", b"VmSwap:\t 4 kB\n");
    assert_eq!(state(&tree), State::Bad);
    tree.write_bytes("/proc/7/status", b"VmSwap:\t x kB\n");
    assert_eq!(state(&tree), State::Unseen);
    assert_eq!(state(&Tree::new(&[])), State::Unseen);
    assert_eq!(find(&tree, "mem.swap").state, State::Absent);
}

#[test]
fn cards_on_other_nodes_are_bad() {
    let drive = "/sys/devices/pci0000:00/0000:00:01.0";
    let tree = Tree::new(&[
        ("/sys/devices/system/node/node0/cpulist", "0-1\n"),
        ("/sys/devices/system/node/node1/cpulist", "2-3\n"),
        ("/sys/class/net/x", ""),
        ("/sys/block/x", ""),
        (&format!("{drive}/numa_node"), "0\n"),
        (&format!("{drive}/nvme/nvme0/nvme0n1/size"), "0\n"),
    ]);
    fs::remove_file(tree.path("/sys/block/x")).unwrap();
    fs::remove_file(tree.path("/sys/class/net/x")).unwrap();
    tree.link("/sys/block/nvme0n1", "../devices/pci0000:00/0000:00:01.0/nvme/nvme0/nvme0n1");
    assert_eq!(state(&tree, "mem.node"), State::Good);
    tree.write_bytes(&format!("{drive}/numa_node"), b"1\n");
    assert_eq!(state(&tree, "mem.node"), State::Bad);
    tree.write_bytes(&format!("{drive}/numa_node"), b"x\n");
    assert_eq!(state(&tree, "mem.node"), State::Unseen);
    tree.write_bytes("/sys/devices/system/node/node0/cpulist", b"0\n");
    tree.write_bytes("/sys/devices/system/node/node1/cpulist", b"1\n");
    assert_eq!(state(&tree, "mem.node"), State::Bad);
    tree.write_bytes("/sys/devices/system/node/node1/cpulist", b"x\n");
    assert_eq!(state(&tree, "mem.node"), State::Unseen);
}
