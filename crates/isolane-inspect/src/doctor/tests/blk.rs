//! Block devices and file systems.

use isolane_observe::snapshot::Volume;

use super::*;
use crate::system::Root;

/// The files of the queue of a drive, with a bad value for each.
struct QueueCase {
    id: &'static str,
    files: &'static [(&'static str, &'static str, &'static str)],
}

const CASES: &[QueueCase] = &[
    QueueCase {
        id: "blk.scheduler",
        files: &[("scheduler", "[none] mq-deadline\n", "none [mq-deadline]\n")],
    },
    QueueCase { id: "blk.wbt", files: &[("wbt_lat_usec", "0\n", "75000\n")] },
    QueueCase { id: "blk.cache", files: &[("fua", "1\n", "0\n"), ("write_cache", "write back\n", "")] },
    QueueCase {
        id: "blk.split",
        files: &[
            ("max_sectors_kb", "1280\n", "64\n"),
            ("rq_affinity", "2\n", "1\n"),
            ("iostats", "1\n", "0\n"),
        ],
    },
];

const QUEUE: &str = "/sys/devices/pci0000:00/0000:00:01.0/nvme0n1/queue";

/// A drive, a RAID, and a virtual disk.
pub(super) fn tree() -> Tree {
    let tree = Tree::new(&[
        ("/sys/class/net/x", ""),
        ("/sys/block/x", ""),
        ("/sys/devices/virtual/block/loop0/queue/scheduler", "[bfq]\n"),
        ("/sys/devices/virtual/block/md0/md/sync_action", "idle\n"),
        ("/sys/devices/virtual/block/md0/md/degraded", "0\n"),
    ]);
    fs::remove_file(tree.path("/sys/block/x")).unwrap();
    fs::remove_file(tree.path("/sys/class/net/x")).unwrap();
    for case in CASES {
        for (name, good, _) in case.files {
            tree.write_bytes(&format!("{QUEUE}/{name}"), good.as_bytes());
        }
    }
    tree.link("/sys/block/nvme0n1", "../devices/pci0000:00/0000:00:01.0/nvme0n1");
    for name in ["loop0", "md0"] {
        tree.link(&format!("/sys/block/{name}"), &format!("../devices/virtual/block/{name}"));
    }
    tree
}

#[test]
fn checks_queues_of_drives() {
    for QueueCase { id, files } in CASES {
        assert_eq!(state(&tree(), id), State::Good, "{id}");
        for (name, _, bad) in *files {
            let (tree, path) = (tree(), format!("{QUEUE}/{name}"));
            if !bad.is_empty() {
                tree.write_bytes(&path, bad.as_bytes());
                assert_eq!(state(&tree, id), State::Bad, "{id}: {name}");
            }
            for malformed in [&b""[..], b"\xff\0[", &[b'1'; 70 << 10]] {
                tree.write_bytes(&path, malformed);
                assert_eq!(state(&tree, id), State::Unseen, "{id}: {name}");
            }
            fs::remove_file(tree.path(&path)).unwrap();
            assert_eq!(state(&tree, id), State::Unseen, "{id}: {name}");
            fs::create_dir(tree.path(&path)).unwrap();
            assert_eq!(state(&tree, id), State::Unseen, "{id}: {name}");
        }
    }
}

#[test]
fn caches_without_fua_can_write_through() {
    let tree = tree();
    tree.write_bytes(&format!("{QUEUE}/fua"), b"0\n");
    tree.write_bytes(&format!("{QUEUE}/write_cache"), b"write through\n");
    assert_eq!(state(&tree, "blk.cache"), State::Good);
}

#[test]
fn checks_copies_of_a_raid() {
    let dir = "/sys/devices/virtual/block/md0/md";
    assert_eq!(state(&tree(), "blk.resync"), State::Good);
    for (name, content, expected) in [
        ("sync_action", "resync\n", State::Bad),
        ("degraded", "1\n", State::Bad),
        ("degraded", "x\n", State::Unseen),
    ] {
        let tree = tree();
        tree.write_bytes(&format!("{dir}/{name}"), content.as_bytes());
        assert_eq!(state(&tree, "blk.resync"), expected, "{name}: {content}");
        fs::remove_file(tree.path(&format!("{dir}/{name}"))).unwrap();
        assert_eq!(state(&tree, "blk.resync"), State::Unseen, "{name}");
        fs::create_dir(tree.path(&format!("{dir}/{name}"))).unwrap();
        assert_eq!(state(&tree, "blk.resync"), State::Unseen, "{name}");
    }
}

#[test]
fn names_the_process_with_other_io() {
    let tree = tree();
    let io = |bytes: u64| format!("read_bytes: {bytes}\nwrite_bytes: 0\n");
    let disk = |sectors: u64| {
        format!("259 0 nvme0n1 1 0 {sectors} 0 0 0 0 0 0 0 0\n 7 0 loop0 0 0 9999999 0 0 0 0 0 0 0\n")
    };
    let check = |ours: u64, total: u64| {
        tree.write_bytes("/proc/7/io", io(ours).as_bytes());
        tree.write_bytes("/proc/8/io", io(total - ours).as_bytes());
        tree.write_bytes("/proc/8/comm", b"dd\n");
        tree.write_bytes("/proc/diskstats", disk(total / 512).as_bytes());
        let mut context = Context::new(tree.root(), None).with_snapshot(target(7));
        run(&mut context, &select("blk.others").unwrap()).remove(0)
    };
    assert_eq!(check(95 << 20, 100 << 20).state, State::Good);
    let finding = check(85 << 20, 100 << 20);
    assert!(finding.state == State::Bad && finding.value.contains("most by dd (PID 8)"), "{finding:?}");
    for path in ["/proc/diskstats", "/proc/7/io"] {
        let mut context = Context::new(tree.root(), None).with_snapshot(target(7));
        tree.write_bytes(path, b"x\n");
        assert_eq!(run(&mut context, &select("blk.others").unwrap())[0].state, State::Unseen, "{path}");
        fs::remove_file(tree.path(path)).unwrap();
        assert_eq!(run(&mut context, &select("blk.others").unwrap())[0].state, State::Unseen, "{path}");
        tree.write_bytes(path, io(0).as_bytes());
        tree.write_bytes("/proc/diskstats", disk(0).as_bytes());
    }
    assert_eq!(state(&tree, "blk.others"), State::Absent);
}

/// Runs a check for a file of a volume.
fn check_file(root: Root, path: &std::path::Path, id: &str) -> State {
    let path = Some(path.display().to_string());
    let snapshot = Snapshot { volumes: vec![Volume { path, ..Volume::default() }], ..target(7) };
    let mut context = Context::new(root, None).with_snapshot(snapshot);
    run(&mut context, &select(id).unwrap())[0].state
}

#[test]
fn allocated_files_have_space() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), [1; 8192]).unwrap();
    file.as_file().sync_all().unwrap();
    assert_eq!(check_file(Root::system().unwrap(), file.path(), "blk.space"), State::Good);
    for id in ["blk.space", "blk.system"] {
        assert_eq!(
            check_file(Root::system().unwrap(), std::path::Path::new("/no/such"), id),
            State::Unseen,
            "{id}"
        );
        assert_eq!(check_file(tree().root(), file.path(), id), State::Unseen, "{id}");
        assert_eq!(state(&tree(), id), State::Absent, "{id}");
    }
    assert_ne!(
        check_file(Root::system().unwrap(), std::path::Path::new("/proc/self/stat"), "blk.system"),
        State::Good
    );
}

/// Runs a check for a file in a copy of a system.
fn check_copy(id: &str, text: &str) -> State {
    let tree = tree();
    tree.write_bytes("/isolane/volumes/data/disk.img", text.as_bytes());
    check_file(tree.root(), std::path::Path::new("/data/disk.img"), id)
}

#[test]
fn checks_space_and_kind_of_file_systems() {
    let file = |allocated: u64, available: u64, system: u64, alignment: &str| {
        format!(
            "major 8\nminor 0\nsize 100\nallocated {allocated}\nblocks 1000\navailable_blocks {available}\n\
             file_system {system}\n{alignment}"
        )
    };
    let direct = "direct_io_alignment 4\n";
    for (allocated, available, expected) in
        [(100, 0, State::Good), (0, 100, State::Good), (99, 99, State::Bad), (0, 0, State::Bad)]
    {
        let text = file(allocated, available, 0xef53, direct);
        assert_eq!(check_copy("blk.space", &text), expected, "{text}");
    }
    for (system, alignment, expected) in [
        (0xef53, direct, State::Good),
        (0xef53, "direct_io_alignment 0\n", State::Bad),
        (0xef53, "", State::Unseen),
        (0x6969, direct, State::Bad),
        (0x9123_683e, direct, State::Bad),
    ] {
        let text = file(0, 0, system, alignment);
        assert_eq!(check_copy("blk.system", &text), expected, "{text}");
    }
    for id in ["blk.space", "blk.system"] {
        for text in ["", "major x\n", "\u{1b}[2J"] {
            assert_eq!(check_copy(id, text), State::Unseen, "{id}: {text}");
        }
    }
}
