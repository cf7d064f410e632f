//! Copies for another machine.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use isolane_observe::snapshot::VERSION;

use super::*;
use crate::doctor::{Check, capture};
use crate::system::Root;

/// Runs all checks below a root.
fn check_all(root: Root, cores: Option<Vec<u32>>) -> (Vec<Finding>, Context) {
    let mut context = Context::new(root, cores);
    let all: Vec<&Check> = checks().collect();
    (run(&mut context, &all), context)
}

fn copy(context: &Context, dir: &Path) -> Root {
    capture(&context.accesses(), dir).unwrap();
    Root::open(dir).unwrap()
}

#[test]
fn finds_the_same_in_a_copy() {
    for tree in [net::tree(), pci::tree(), irq::tree(), blk::tree()] {
        let unreadable = "/proc/sys/net/ipv4/tcp_slow_start_after_idle";
        let _ = fs::remove_file(tree.path(unreadable));
        fs::create_dir_all(tree.path(unreadable)).unwrap();
        tree.write_bytes("/proc/sys/kernel/io_uring_disabled", &[b'9'; 70 << 10]);
        tree.write_bytes("/proc/9/environ", b"secret");
        tree.write_bytes("/proc/9/comm", b"irqbalance\n");
        tree.write_bytes("/proc/9/status", b"Cpus_allowed_list:\t0-3\nSeccomp:\t0\n");
        tree.link("/proc/self", "9");
        let (findings, context) = check_all(tree.root().recorded(), Some(vec![0, 1]));
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        let root = copy(&context, &first);
        assert!(first.join("proc/9/comm").exists() && !first.join("proc/9/environ").exists());
        assert_eq!(fs::metadata(&first).unwrap().permissions().mode() & 0o777, 0o700);
        let (found, context) = check_all(root.recorded(), None);
        assert_eq!(found, findings);
        assert_eq!(check_all(copy(&context, &second), None).0, findings, "a copy of the copy");
        assert!(capture(&context.accesses(), &first).is_err(), "the directory exists");
    }
}

#[test]
fn copies_the_running_system_without_secrets() {
    let (findings, context) = check_all(Root::system().unwrap().recorded(), None);
    let accesses = context.accesses();
    let allowed = ["/proc/", "/sys/", "/etc/default/irqbalance", "/etc/sysconfig/irqbalance", "/isolane/"];
    assert!(accesses.files().count() > 10);
    for (path, _) in accesses.files() {
        assert!(allowed.iter().any(|start| path.starts_with(start)), "{path}");
        let name = path.rsplit('/').next().unwrap();
        assert!(!["environ", "cmdline", "maps", "mem", "stack"].contains(&name), "{path}");
    }
    let dir = tempfile::tempdir().unwrap();
    let (found, _) = check_all(copy(&context, &dir.path().join("copy")), None);
    for (found, finding) in found.iter().zip(&findings) {
        assert_eq!(found, finding);
    }
}

#[test]
fn copy_has_both_readings_and_the_target() {
    let snapshot = Snapshot { version: VERSION, ..own::with_counter("memory-waits", 3) };
    let tree = Tree::new(&[
        ("/proc/7/io", "read_bytes: 0\nwrite_bytes: 0\n"),
        ("/proc/7/status", "Cpus_allowed_list:\t0-3\n"),
        ("/proc/net/netstat", "TcpExt: ListenOverflows\nTcpExt: 5\n"),
        ("/proc/net/snmp", ""),
        ("/isolane/target.json", &serde_json::to_string(&snapshot).unwrap()),
        ("/isolane/first-reading/proc/net/netstat", "TcpExt: ListenOverflows\nTcpExt: 2\n"),
    ]);
    let value = |root: Root, id: &str| {
        let mut context = Context::new(root, None);
        let finding = run(&mut context, &select(id).unwrap()).remove(0);
        (finding.value, context)
    };
    let (text, context) = value(tree.root().recorded(), "net.listen");
    assert!(text.contains("3 overflows in 1 s"), "{text}");
    let dir = tempfile::tempdir().unwrap();
    let root = copy(&context, &dir.path().join("copy"));
    assert_eq!(value(root, "net.listen").0, text);
    assert_eq!(value(tree.root(), "own.pool").0, "0 commands waited for memory in 1 s");
    tree.write_bytes("/isolane/target.json", b"{\"numbers\":3}");
    let (text, _) = value(tree.root(), "own.pool");
    assert!(text.starts_with("not seen: /isolane/target.json") && text.contains("numbers"), "{text}");
}

#[test]
fn all_checks_use_the_copied_content() {
    let tree = Tree::new(&[("/proc/x", "1\n"), ("/dir/1", "")]);
    let mut root = tree.root().recorded();
    let read = |root: &Root| (root.word("/proc/x").unwrap(), root.list("/dir").unwrap().len());
    assert_eq!(read(&root), ("1".to_owned(), 1));
    tree.write_bytes("/proc/x", b"2\n");
    tree.write_bytes("/dir/2", b"");
    assert_eq!(read(&root), ("1".to_owned(), 1));
    root.start_second_reading();
    assert_eq!(read(&root), ("2".to_owned(), 2));
    assert_eq!(root.accesses().first_reading().unwrap().count(), 1);
}

/// A target can name a file of a volume as it wants.
#[test]
fn copy_writes_nothing_outside_of_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::system().unwrap().recorded();
    for path in ["/isolane/volumes/../../../out", "/../out", "/isolane/./out"] {
        root.record_text(path, "x");
    }
    capture(&root.accesses(), &dir.path().join("copy")).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(fs::read_dir(dir.path().join("copy")).unwrap().count(), 0);
}
