//! Number of files that are read on a large system.

use super::*;

const CPUS: u32 = 512;
const LINES: u32 = 4_096;

/// All lines belong to one drive. Lines and cores are links to one directory each, because that number of files takes long to
/// create.
fn large_tree() -> Tree {
    let function = "/sys/devices/pci0000:00/0000:00:01.0";
    let tree = Tree::new(&[
        (&format!("{function}/numa_node"), "0\n"),
        (&format!("{function}/nvme/nvme0/nvme0n1/size"), "0\n"),
        ("/sys/devices/system/node/node0/cpulist", "0-511\n"),
        ("/sys/class/net/x/operstate", "down\n"),
        ("/line/hwirq", "1\n"),
        ("/line/chip_name", "PCI-MSIX\n"),
        ("/line/actions", "nvme0q1\n"),
        ("/line/effective_affinity_list", "3\n"),
        ("/cpu/topology/thread_siblings_list", "0-511\n"),
        ("/cpu/cpufreq/scaling_governor", "performance\n"),
        ("/cpu/cpuidle/state0/latency", "1\n"),
        ("/cpu/cpuidle/state0/disable", "0\n"),
        ("/cpu/thermal_throttle/core_throttle_count", "0\n"),
    ]);
    for dir in [
        "/sys/block",
        "/proc/irq",
        "/sys/kernel/irq",
        "/sys/devices/system/cpu",
        &format!("{function}/msi_irqs"),
    ] {
        fs::create_dir_all(tree.path(dir)).unwrap();
    }
    tree.link("/sys/block/nvme0n1", "../devices/pci0000:00/0000:00:01.0/nvme/nvme0/nvme0n1");
    for line in 0..LINES {
        tree.link(&format!("{function}/msi_irqs/{line}"), "/line");
        tree.link(&format!("/proc/irq/{line}"), "/line");
        tree.link(&format!("/sys/kernel/irq/{line}"), "/line");
    }
    for cpu in 0..CPUS {
        tree.link(&format!("/sys/devices/system/cpu/cpu{cpu}"), "/cpu");
    }
    tree
}

#[test]
fn reads_each_file_of_a_large_system_once() {
    let tree = large_tree();
    let mut context = Context::new(tree.root().recorded(), Some((0..CPUS).collect()));
    let all: Vec<_> = checks().collect();
    let findings = run(&mut context, &all);
    for id in ["irq.shared", "irq.cores", "cpu.idle", "cpu.governor", "cpu.siblings", "cpu.throttle"] {
        let finding = findings.iter().find(|finding| finding.id == id).unwrap();
        assert!([State::Good, State::Bad].contains(&finding.state), "{finding:?}");
    }
    // Three files in sysfs, and the cores.
    let of_lines = 4 * LINES as usize;
    // Five files, and the lists of directories that may have them.
    let of_cpus = 11 * CPUS as usize;
    let reads = context.accesses().reads();
    assert!((of_lines..of_lines + of_cpus + 200).contains(&reads), "{reads} reads");
}
