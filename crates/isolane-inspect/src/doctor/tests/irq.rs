//! Interrupts.

use super::*;

const FUNCTION: &str = "/sys/devices/pci0000:00/0000:00:01.0";

/// An NVMe drive with the lines 41 to 43 on node 0, and a process.
pub(super) fn tree() -> Tree {
    let tree = Tree::new(&[
        ("/sys/class/net/x", ""),
        ("/sys/block/x", ""),
        (&format!("{FUNCTION}/numa_node"), "0\n"),
        (&format!("{FUNCTION}/nvme/nvme0/nvme0n1/size"), "0\n"),
        ("/sys/devices/system/node/node0/cpulist", "0-3\n"),
        ("/proc/7/comm", "bash\n"),
    ]);
    fs::remove_file(tree.path("/sys/block/x")).unwrap();
    fs::remove_file(tree.path("/sys/class/net/x")).unwrap();
    tree.link("/sys/block/nvme0n1", "../devices/pci0000:00/0000:00:01.0/nvme/nvme0/nvme0n1");
    for (line, cpu) in [(41, "2"), (42, "1"), (43, "0")] {
        tree.write_bytes(&format!("{FUNCTION}/msi_irqs/{line}"), b"msix\n");
        tree.write_bytes(&format!("/proc/irq/{line}/effective_affinity_list"), cpu.as_bytes());
        write_line(&tree, line, "PCI-MSIX", line, &format!("nvme0q{line}"));
    }
    write_line(&tree, 9, "IO-APIC", 9, "acpi,other");
    tree
}

fn write_line(tree: &Tree, number: u32, chip: &str, hwirq: u32, actions: &str) {
    for (name, value) in [("chip_name", chip), ("hwirq", &hwirq.to_string()), ("actions", actions)] {
        tree.write_bytes(&format!("/sys/kernel/irq/{number}/{name}"), value.as_bytes());
    }
}

#[test]
fn names_other_handlers_of_a_line() {
    let tree = tree();
    assert_eq!(state(&tree, "irq.shared"), State::Good);
    write_line(&tree, 42, "IO-APIC", 42, "nvme0q1,switchtec");
    let finding = find(&tree, "irq.shared");
    assert_eq!(finding.state, State::Bad);
    assert!(finding.value.contains("line 42 of nvme0n1: nvme0q1, switchtec"), "{}", finding.value);
    fs::remove_dir_all(tree.path(&format!("{FUNCTION}/msi_irqs"))).unwrap();
    assert_eq!(state(&tree, "irq.shared"), State::Absent);
    tree.write_bytes(&format!("{FUNCTION}/irq"), b"42\n");
    assert_eq!(state(&tree, "irq.shared"), State::Bad);
}

#[test]
fn finds_slow_handlers_beneath_a_vmd() {
    let tree = tree();
    assert_eq!(state(&tree, "irq.vmd"), State::Absent);
    write_line(&tree, 41, "VMD-MSI", 130, "nvme0q1");
    write_line(&tree, 42, "VMD-MSI", 131, "switchtec");
    assert_eq!(state(&tree, "irq.vmd"), State::Good);
    write_line(&tree, 42, "VMD-MSI", 130, "switchtec");
    let finding = find(&tree, "irq.vmd");
    assert_eq!((finding.state, &*finding.remedy), (State::Bad, &["rmmod switchtec".to_owned()][..]));
    tree.write_bytes("/sys/kernel/irq/42/hwirq", b"\n");
    assert_eq!(state(&tree, "irq.vmd"), State::Unseen);
}

#[test]
fn finds_all_lines_on_one_reactor() {
    let tree = tree();
    assert_eq!(state(&tree, "irq.cores"), State::Good);
    for line in [41, 42, 43] {
        tree.write_bytes(&format!("/proc/irq/{line}/effective_affinity_list"), b"1\n");
    }
    assert_eq!(state(&tree, "irq.cores"), State::Bad);
    tree.write_bytes("/proc/irq/41/effective_affinity_list", b"9\n");
    assert!(find(&tree, "irq.cores").value.contains("not all on its node"));
    for path in ["/proc/irq/41/effective_affinity_list", "/sys/devices/system/node/node0/cpulist"] {
        tree.write_bytes(path, b"x");
        assert_eq!(state(&tree, "irq.cores"), State::Unseen, "{path}");
        fs::remove_file(tree.path(path)).unwrap();
        assert_eq!(state(&tree, "irq.cores"), State::Unseen, "{path}");
        tree.write_bytes(path, b"1");
    }
}

#[test]
fn unreadable_lines_are_not_good() {
    for id in ["irq.shared", "irq.vmd", "irq.cores"] {
        for (name, content) in [("hwirq", &b"x"[..]), ("actions", &[b'a'; 70 << 10])] {
            let tree = tree();
            tree.write_bytes(&format!("/sys/kernel/irq/9/{name}"), content);
            assert_eq!(state(&tree, id), State::Unseen, "{id}: {name}");
            fs::remove_file(tree.path(&format!("/sys/kernel/irq/9/{name}"))).unwrap();
            assert_eq!(state(&tree, id), State::Unseen, "{id}: {name}");
        }
    }
}

#[test]
fn irqbalance_must_ban_cores_of_reactors() {
    let tree = tree();
    assert_eq!(state(&tree, "irq.balance"), State::Good);
    tree.write_bytes("/proc/8/comm", b"irqbalance\n");
    assert_eq!(state(&tree, "irq.balance"), State::Bad);
    tree.write_bytes("/etc/default/irqbalance", b"# x\nIRQBALANCE_BANNED_CPULIST=\"0-1\"\n");
    assert_eq!(state(&tree, "irq.balance"), State::Good);
    tree.write_bytes("/etc/default/irqbalance", b"IRQBALANCE_BANNED_CPULIST=x\n");
    assert_eq!(state(&tree, "irq.balance"), State::Unseen);
    fs::remove_file(tree.path("/etc/default/irqbalance")).unwrap();
    fs::create_dir(tree.path("/etc/default/irqbalance")).unwrap();
    assert_eq!(state(&tree, "irq.balance"), State::Unseen);
}
