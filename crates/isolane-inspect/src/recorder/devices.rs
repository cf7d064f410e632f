//! Disks beneath volumes.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use isolane_observe::snapshot::{Device, Line, Snapshot};

use crate::system::{BlockDevice, IrqLine, Root, device_of, devices_beneath};

/// Time for which a result is used again.
const MAX_AGE: Duration = Duration::from_secs(10);
/// Limit for the number of interrupt lines of one device.
const MAX_LINES: usize = 256;

/// The disks of all paths, as last read.
#[derive(Debug, Default)]
pub struct Devices {
    read_at: Option<Instant>,
    /// Name of the disk beneath each path.
    by_path: BTreeMap<String, Option<String>>,
    devices: BTreeMap<String, Device>,
}

impl Devices {
    /// Sets the devices of a snapshot.
    pub fn fill(&mut self, root: &Root, snapshot: &mut Snapshot) {
        let is_old = self.read_at.is_none_or(|at| at.elapsed() > MAX_AGE);
        if is_old {
            *self = Devices { read_at: Some(Instant::now()), ..Devices::default() };
        }
        for volume in &mut snapshot.volumes {
            let Some(path) = &volume.path else { continue };
            if !self.by_path.contains_key(path) {
                let name = self.read(root, path);
                self.by_path.insert(path.clone(), name);
            }
            volume.device = self.by_path.get(path).cloned().flatten();
        }
        snapshot.devices = self.devices.values().cloned().collect();
    }

    /// Reads the devices beneath a path. Returns the name of the first disk.
    fn read(&mut self, root: &Root, path: &str) -> Option<String> {
        let number = device_of(Path::new(path)).ok()?;
        self.add(root, number)
    }

    fn add(&mut self, root: &Root, number: (u32, u32)) -> Option<String> {
        let found = devices_beneath(root, number).ok()?;
        for block in found.iter().filter(|block| !is_partition(root, block)) {
            let beneath = beneath(root, block, &found);
            self.devices.entry(block.name.clone()).or_insert_with(|| describe(root, block, beneath));
        }
        found.iter().find(|block| !is_partition(root, block)).map(|disk| disk.name.clone())
    }
}

fn is_partition(root: &Root, block: &BlockDevice) -> bool {
    root.exists(&format!("{}/partition", block.path))
}

/// Returns the disks directly beneath a device. A partition stands for its disk, and a backing file for the disk
/// beneath its file system.
fn beneath(root: &Root, block: &BlockDevice, all: &[BlockDevice]) -> Vec<String> {
    let mut found = Vec::new();
    for name in &block.below {
        let by_file = || device_of(Path::new(name)).ok();
        let file = if name.starts_with('/') { by_file() } else { None };
        let device = all.iter().find(|it| it.name == *name || Some(it.device) == file);
        match device {
            Some(device) if is_partition(root, device) => found.extend(device.below.first().cloned()),
            Some(device) => found.push(device.name.clone()),
            None => {}
        }
    }
    found.sort();
    found.dedup();
    found
}

fn describe(root: &Root, block: &BlockDevice, beneath: Vec<String>) -> Device {
    let word = |file: &str| root.word(&format!("{}/{file}", block.path)).unwrap_or_default();
    let function = block.functions.first();
    let lines = function.map_or(&[][..], |function| &function.irqs);
    let lines = lines.iter().take(MAX_LINES).map(|number| Line {
        number: *number,
        actions: IrqLine::read(root, *number).map(|line| line.actions).unwrap_or_default(),
        cpus: IrqLine::cpus(root, *number).unwrap_or_default(),
    });
    let resync = word("md/sync_action");
    Device {
        name: block.name.clone(),
        number: format!("{}:{}", block.device.0, block.device.1),
        model: word("device/model"),
        beneath,
        pci: function.map(|function| function.address.clone()),
        node: function.and_then(|function| function.numa_node),
        interrupts: lines.collect(),
        resync: if resync.is_empty() { "idle".to_owned() } else { resync },
    }
}

#[cfg(test)]
mod tests {
    use isolane_observe::snapshot::Volume;

    use super::*;
    use crate::testing::Tree;

    /// An md device on a partition of an NVMe drive.
    fn tree() -> Tree {
        let function = "/sys/devices/pci0000:00/0000:00:01.0";
        let disk = format!("{function}/nvme/nvme0/nvme0n1");
        let tree = Tree::new(&[
            (&format!("{disk}/dev"), "259:0\n"),
            (&format!("{disk}/device/model"), "Fast Disk   \n"),
            (&format!("{disk}/nvme0n1p1/dev"), "259:1\n"),
            (&format!("{disk}/nvme0n1p1/partition"), "1\n"),
            (&format!("{function}/numa_node"), "1\n"),
            (&format!("{function}/msi_irqs/41"), "msix\n"),
            ("/sys/kernel/irq/41/actions", "nvme0q1,switchtec\n"),
            ("/sys/kernel/irq/41/hwirq", "7\n"),
            ("/sys/kernel/irq/41/chip_name", "PCI-MSI\n"),
            ("/proc/irq/41/effective_affinity_list", "0-1\n"),
            ("/sys/devices/virtual/block/md0/dev", "9:0\n"),
            ("/sys/devices/virtual/block/md0/md/sync_action", "resync\n"),
            ("/sys/devices/virtual/block/md0/slaves/x", ""),
            ("/sys/dev/block/x", ""),
        ]);
        std::fs::remove_file(tree.path("/sys/devices/virtual/block/md0/slaves/x")).unwrap();
        let partition = format!("{disk}/nvme0n1p1");
        tree.link(
            "/sys/devices/virtual/block/md0/slaves/nvme0n1p1",
            &format!("../../../../../..{partition}"),
        );
        tree.link("/sys/dev/block/9:0", "../../devices/virtual/block/md0");
        tree.link("/sys/dev/block/259:0", &format!("../../..{disk}"));
        tree.link("/sys/dev/block/259:1", &format!("../../..{partition}"));
        tree
    }

    #[test]
    fn describes_disks_and_their_interrupts() {
        let tree = tree();
        let mut devices = Devices::default();
        assert_eq!(devices.add(&tree.root(), (9, 0)).as_deref(), Some("md0"));
        assert_eq!(
            devices.add(&tree.root(), (259, 1)).as_deref(),
            Some("nvme0n1"),
            "a partition is its disk"
        );
        let names: Vec<&str> = devices.devices.keys().map(String::as_str).collect();
        assert_eq!(names, ["md0", "nvme0n1"]);
        let (md, nvme) = (&devices.devices["md0"], &devices.devices["nvme0n1"]);
        assert_eq!((&*md.resync, &*md.beneath, &*md.number), ("resync", &["nvme0n1".to_owned()][..], "9:0"));
        assert_eq!(
            (&*nvme.model, nvme.node, nvme.pci.as_deref()),
            ("Fast Disk", Some(1), Some("0000:00:01.0"))
        );
        assert_eq!((&*nvme.resync, &nvme.beneath), ("idle", &vec![]));
        let [line] = &*nvme.interrupts else { panic!("{nvme:?}") };
        assert_eq!((line.number, &*line.cpus), (41, &[0, 1][..]));
        assert_eq!(line.actions, ["nvme0q1", "switchtec"]);
    }

    #[test]
    fn paths_without_a_disk_have_no_device() {
        let volume = |path: &str| Volume { path: Some(path.to_owned()), ..Volume::default() };
        let mut snapshot =
            Snapshot { volumes: vec![volume("/no/such"), volume("/proc/self")], ..Snapshot::default() };
        Devices::default().fill(&tree().root(), &mut snapshot);
        assert!(snapshot.devices.is_empty() && snapshot.volumes.iter().all(|volume| volume.device.is_none()));
    }
}
