use isolane_observe::snapshot::{Connection, Core, Device, Numbers, Program, Snapshot, Tcp, Volume};

use super::*;
use crate::testing::Tree;

const FUNCTION: &str = "/sys/devices/pci0000:00/10000:01:00.0";
const STAT: &str = "R 1 1 1 0 -1 4 1 0 0 0 5 7 0 0 20 0 1 0 19 31 40 18 9 9 9 0 0 0 0 0 0 0 0 0 17 3 0 0\n";

/// A drive behind a VMD whose vector another drive shares, a core with a task, and a network card.
fn tree() -> Tree {
    let disk = format!("{FUNCTION}/nvme/nvme5/nvme5n1");
    let card = "/sys/devices/pci0000:00/0000:00:03.0/net/eth0";
    let network = u32::from_ne_bytes([10, 0, 0, 0]);
    let mask = u32::from_ne_bytes([255, 0, 0, 0]);
    let tree = Tree::new(&[
        (&format!("{disk}/dev"), "259:5\n"),
        (&format!("{disk}/mq/0/cpu_list"), "0, 1, 2\n"),
        (&format!("{FUNCTION}/numa_node"), "1\n"),
        (&format!("{FUNCTION}/current_link_speed"), "16.0 GT/s PCIe\n"),
        (&format!("{FUNCTION}/current_link_width"), "4\n"),
        (&format!("{FUNCTION}/msi_irqs/41"), "msix\n"),
        ("/sys/kernel/irq/30/actions", "vmd1\n"),
        ("/sys/kernel/irq/30/hwirq", "9\n"),
        ("/sys/kernel/irq/30/chip_name", "PCI-MSI\n"),
        ("/sys/kernel/irq/41/actions", "nvme5q1\n"),
        ("/sys/kernel/irq/41/hwirq", "30\n"),
        ("/sys/kernel/irq/41/chip_name", "VMD-MSI\n"),
        ("/sys/kernel/irq/44/actions", "switchtec\n"),
        ("/sys/kernel/irq/44/hwirq", "30\n"),
        ("/sys/kernel/irq/44/chip_name", "VMD-MSI\n"),
        ("/proc/irq/41/effective_affinity_list", "0-1\n"),
        ("/sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "3,7\n"),
        ("/proc/700/task/701/stat", &format!("701 (reactor 0) {STAT}")),
        ("/proc/800/task/800/stat", &format!("800 (busy) {STAT}")),
        ("/proc/700/cgroup", "0::/system.slice/isolane.service\n"),
        ("/proc/700/mountinfo", "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
        ("/proc/700/net/route", &format!("Iface\neth0 {network:08X} 0 0001 0 0 0 {mask:08X} 0 0 0\n")),
        ("/proc/interrupts", "  CPU0  CPU3\n 41: 5 0 VMD-MSI nvme5q1\n 42: 0 6 PCI-MSI eth0\n"),
        (&format!("{card}/queues/tx-0/xps_cpus"), "1\n"),
        (&format!("{card}/queues/tx-1/xps_cpus"), "8\n"),
        (&format!("{card}/queues/rx-0/rps_cpus"), "0\n"),
        ("/sys/class/net/x", ""),
        ("/sys/dev/block/x", ""),
    ]);
    tree.link("/sys/class/net/eth0", &format!("../../..{card}"));
    tree.link("/sys/dev/block/259:5", &format!("../../..{disk}"));
    tree
}

fn snapshot() -> Snapshot {
    let volume = |id, name: &str| Volume { id, name: name.to_owned(), ..Volume::default() };
    let member = Volume { parent: Some(0), device: Some("nvme5n1".into()), ..volume(1, "b") };
    let tcp = Some(Tcp { rtt_us: 120, ..Tcp::default() });
    let connection = |peer: &str| Connection {
        peer: peer.into(),
        local: "10.0.0.1:4420".into(),
        tcp,
        ..Connection::default()
    };
    Snapshot {
        program: Program { pid: 700, ..Program::default() },
        volumes: vec![Volume { nsid: Some(3), ..volume(0, "disk\u{1b}") }, member],
        devices: vec![Device { name: "nvme5n1".into(), number: "259:5".into(), ..Device::default() }],
        numbers: Numbers {
            cores: vec![Core { cpu: Some(3), thread: 701, ..Core::default() }],
            connections: vec![connection("10.0.0.2:99"), connection("10.0.0.1:98")],
            ..Numbers::default()
        },
        ..Snapshot::default()
    }
}

fn describe_text(tree: &Tree, snapshot: &Snapshot) -> String {
    to_text(&describe(&tree.root(), snapshot, &snapshot.volumes[0]))
}

#[test]
fn describes_the_path_from_volume_to_cpu() {
    let text = describe_text(&tree(), &snapshot());
    let expected = "\
volume disk\\u{1b}: namespace 3
  volume b
    device nvme5n1: number 259:5
      queue 0: cores 0-2
      function 10000:01:00.0: link 16.0 GT/s PCIe x4; NUMA node 1
        interrupt 41: handlers nvme5q1; cores 0-1; chip VMD-MSI; vector of VMD 30 (vmd1); \
        shares the vector with 44 (switchtec)
";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn describes_cores_and_network_devices() {
    let text = describe_text(&tree(), &snapshot());
    let expected = "\
reactor 0: core 3; thread 701; siblings 7; control group /sys/fs/cgroup/system.slice/isolane.service
  task busy: thread 800; process 800; ticks 12
  interrupt 42: count 6; description PCI-MSI eth0
connection 10.0.0.2:99: to 10.0.0.1:4420; queue pair 0; reactor 0; network device eth0; sends on tx-1; TCP round trip 120 us";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("network device lo;"), "a peer on this machine: {text}");
    let expected = "\
network device eth0
  queue rx-0
  queue tx-0: XPS cores 0
  queue tx-1: XPS cores 3
  function 0000:00:03.0
";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn lists_files_that_cannot_be_read() {
    let tree = tree();
    tree.write_bytes("/proc/interrupts", b"nothing");
    std::fs::remove_file(tree.path("/sys/dev/block/259:5")).unwrap();
    let text = describe_text(&tree, &snapshot());
    assert!(text.contains("not seen: /sys/dev/block/259:5: does not exist; "), "{text}");
    assert!(text.contains("/proc/interrupts: line 1: expected the CPUs"), "{text}");
}

#[test]
fn ends_for_volumes_that_contain_each_other() {
    let mut snapshot = snapshot();
    snapshot.volumes[0].parent = Some(1);
    assert!(describe_text(&tree(), &snapshot).contains("volume b"));
}

#[test]
fn finds_volumes_by_name_or_namespace() {
    let snapshot = snapshot();
    assert_eq!(find(&snapshot, "b").unwrap().id, 1);
    assert_eq!(find(&snapshot, "3").unwrap().id, 0);
    assert!(find(&snapshot, "c").is_none());
}
