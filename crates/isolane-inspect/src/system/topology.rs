//! Devices beneath a volume: from a file or block device down to disks and PCI functions.
//!
//! A file leads to the device of its file system, a partition to its disk, a device-mapper or md device to its
//! `slaves`, and a loop device to its backing file.

use std::collections::BTreeSet;
use std::path::Path;

use super::decode::decode_number;
use super::read_error::{Malformed, ReadError, Reason, if_missing};
use super::root::{Root, SMALL};
use super::volume_file::VolumeFile;

/// Limit for the number of devices beneath one volume.
const MAX_DEVICES: usize = 1_024;

/// A block device beneath a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockDevice {
    /// Name of the device, for example `nvme0n1` or `dm-3`.
    pub name: String,
    /// Number of the device: major, minor.
    pub device: (u32, u32),
    /// Path in sysfs without links.
    pub path: String,
    /// Names of the devices directly beneath, none for a physical disk.
    pub below: Vec<String>,
    /// PCI functions of the path from the device to the bridge, nearest first.
    pub functions: Vec<PciFunction>,
}

/// A PCI function above a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PciFunction {
    /// Path in sysfs without links.
    pub path: String,
    /// Address, for example `0000:00:02.0`.
    pub address: String,
    /// NUMA node, if the function belongs to one.
    pub numa_node: Option<u32>,
    /// Current speed and width of the link, for example `16.0 GT/s PCIe x4`, if it has one.
    pub link: Option<String>,
    /// Numbers of its message-signaled interrupts, or of its line if it has none.
    pub irqs: Vec<u32>,
}

/// Returns the devices beneath the device with a number: the device itself first, each device once.
///
/// # Errors
/// A file that cannot be read, or more than 1,024 devices.
pub fn devices_beneath(root: &Root, device: (u32, u32)) -> Result<Vec<BlockDevice>, ReadError> {
    let mut found: Vec<BlockDevice> = Vec::new();
    let mut waiting = vec![device];
    let mut seen = BTreeSet::from([device]);
    while let Some(device) = waiting.pop() {
        let (block, below) = read_device(root, device)?;
        found.push(block);
        if found.len() == MAX_DEVICES {
            return Err(malformed(&found[0].path, "fewer devices"));
        }
        waiting.extend(below.into_iter().filter(|device| seen.insert(*device)));
    }
    Ok(found)
}

/// Returns the number of the device of a file system, or of a block device.
///
/// # Errors
/// The path cannot be read.
pub fn device_of(path: &Path) -> Result<(u32, u32), ReadError> {
    let failed = |errno| ReadError { path: path.display().to_string(), reason: Reason::from(errno) };
    let metadata = rustix::fs::stat(path).map_err(failed)?;
    let is_device =
        rustix::fs::FileType::from_raw_mode(metadata.st_mode) == rustix::fs::FileType::BlockDevice;
    let device = if is_device { metadata.st_rdev } else { metadata.st_dev };
    Ok((rustix::fs::major(device), rustix::fs::minor(device)))
}

fn read_device(root: &Root, device: (u32, u32)) -> Result<(BlockDevice, Vec<(u32, u32)>), ReadError> {
    let path = root.resolve(&format!("/sys/dev/block/{}:{}", device.0, device.1))?;
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let mut below = Vec::new();
    let is_partition = root.exists(&format!("{path}/partition"));
    if is_partition {
        let disk = path.rsplit_once('/').map_or("", |(disk, _)| disk);
        below.push((disk.rsplit('/').next().unwrap_or_default().to_owned(), device_number(root, disk)?));
    } else {
        for slave in root.list(&format!("{path}/slaves")).or_else(if_missing)? {
            let number = device_number(root, &format!("{path}/slaves/{slave}"))?;
            below.push((slave, number));
        }
        below.extend(backing_file(root, &path)?.map(|(name, file)| (name, file.device)));
    }
    let functions = if below.is_empty() { pci_functions(root, &path)? } else { Vec::new() };
    let (names, numbers) = below.into_iter().unzip();
    Ok((BlockDevice { name, device, path, below: names, functions }, numbers))
}

/// Returns the file beneath a loop device. Only the running system and a copy of it have its state.
fn backing_file(root: &Root, path: &str) -> Result<Option<(String, VolumeFile)>, ReadError> {
    let file = root.word(&format!("{path}/loop/backing_file")).map(Some).or_else(if_missing)?;
    let Some(file) = file.filter(|file| !file.ends_with(" (deleted)")) else { return Ok(None) };
    match VolumeFile::read(root, &file) {
        Err(error) if error.reason == Reason::Missing && !root.is_system() => Ok(None),
        found => found.map(|found| Some((file, found))),
    }
}

fn device_number(root: &Root, path: &str) -> Result<(u32, u32), ReadError> {
    root.parse(&format!("{path}/dev"), SMALL, decode_device_number)
}

/// Decodes the number of a device, for example `259:0`.
///
/// # Errors
/// The text is not a major and a minor number.
pub fn decode_device_number(text: &str) -> Result<(u32, u32), Malformed> {
    let numbers =
        text.trim().split_once(':').and_then(|(major, minor)| major.parse().ok().zip(minor.parse().ok()));
    numbers.ok_or(Malformed::at(0, "MAJOR:MINOR"))
}

/// Returns the PCI functions of a path in sysfs, the last first.
///
/// # Errors
/// A file that exists and cannot be read.
pub fn pci_functions(root: &Root, path: &str) -> Result<Vec<PciFunction>, ReadError> {
    let mut found = Vec::new();
    let mut path = path;
    while let Some((parent, name)) = path.rsplit_once('/') {
        if is_pci_address(name) {
            found.push(read_function(root, path, name)?);
        }
        path = parent;
    }
    Ok(found)
}

fn read_function(root: &Root, path: &str, address: &str) -> Result<PciFunction, ReadError> {
    let node = root.parse(&format!("{path}/numa_node"), SMALL, decode_node).or_else(if_missing)?;
    let speed = root.word(&format!("{path}/current_link_speed")).map(Some).or_else(if_missing)?;
    let width = root.word(&format!("{path}/current_link_width")).map(Some).or_else(if_missing)?;
    let irqs = root.list(&format!("{path}/msi_irqs")).or_else(if_missing)?;
    let mut irqs: Vec<u32> = irqs.iter().filter_map(|irq| irq.parse().ok()).collect();
    if irqs.is_empty() {
        let line = root.parse(&format!("{path}/irq"), SMALL, decode_number).map(Some).or_else(if_missing)?;
        irqs.extend(line.filter(|line| *line != 0).and_then(|line| u32::try_from(line).ok()));
    }
    Ok(PciFunction {
        path: path.to_owned(),
        address: address.to_owned(),
        numa_node: node,
        link: speed.zip(width).map(|(speed, width)| format!("{speed} x{width}")),
        irqs,
    })
}

/// Decodes the number of a NUMA node. -1 means that the firmware names none.
///
/// # Errors
/// The text is not a number.
pub fn decode_node(text: &str) -> Result<Option<u32>, Malformed> {
    let node: i32 = text.trim().parse().map_err(|_| Malformed::at(0, "a node"))?;
    Ok(u32::try_from(node).ok())
}

/// Recognizes names such as `0000:00:02.0`, and `10000:01:00.0` of VMD.
fn is_pci_address(name: &str) -> bool {
    let parts: Vec<&str> = name.split([':', '.']).collect();
    let is_hex = |part: &&str| part.chars().all(|digit| digit.is_ascii_hexdigit());
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    matches!(*lengths, [4 | 5, 2, 2, 1]) && parts.iter().all(is_hex)
}

fn malformed(path: &str, expected: &'static str) -> ReadError {
    ReadError { path: path.to_owned(), reason: Reason::Malformed(Malformed::at(0, expected)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const DISK: &str = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0/nvme0n1";

    /// A device-mapper device on a partition of an NVMe drive.
    fn tree() -> Tree {
        let function = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
        let tree = Tree::new(&[
            (&format!("{DISK}/dev"), "259:0\n"),
            (&format!("{DISK}/nvme0n1p2/dev"), "259:2\n"),
            (&format!("{DISK}/nvme0n1p2/partition"), "2\n"),
            (&format!("{function}/numa_node"), "1\n"),
            (&format!("{function}/current_link_speed"), "16.0 GT/s PCIe\n"),
            (&format!("{function}/current_link_width"), "4\n"),
            (&format!("{function}/msi_irqs/41"), "msix\n"),
            ("/sys/devices/pci0000:00/0000:00:01.0/numa_node", "-1\n"),
            ("/sys/devices/virtual/block/dm-0/dev", "253:0\n"),
            ("/sys/devices/virtual/block/dm-0/slaves/x", ""),
            ("/sys/dev/block/x", ""),
        ]);
        std::fs::remove_file(tree.path("/sys/devices/virtual/block/dm-0/slaves/x")).unwrap();
        tree.link(
            "/sys/devices/virtual/block/dm-0/slaves/nvme0n1p2",
            &format!("../../../../../..{DISK}/nvme0n1p2"),
        );
        tree.link("/sys/dev/block/253:0", "../../devices/virtual/block/dm-0");
        tree.link("/sys/dev/block/259:0", &format!("../../..{DISK}"));
        tree.link("/sys/dev/block/259:2", &format!("../../..{DISK}/nvme0n1p2"));
        tree
    }

    #[test]
    fn finds_the_pci_function_of_a_partition() {
        let found = devices_beneath(&tree().root(), (253, 0)).unwrap();
        let names: Vec<&str> = found.iter().map(|device| &*device.name).collect();
        assert_eq!(names, ["dm-0", "nvme0n1p2", "nvme0n1"]);
        assert_eq!((&found[0].below, &found[1].below), (&vec!["nvme0n1p2".into()], &vec!["nvme0n1".into()]));
        let [drive, bridge] = &*found[2].functions else { panic!("{found:?}") };
        assert_eq!((&*drive.address, drive.numa_node, &*drive.irqs), ("0000:01:00.0", Some(1), &[41][..]));
        assert_eq!(drive.link.as_deref(), Some("16.0 GT/s PCIe x4"));
        assert_eq!((bridge.numa_node, &bridge.link), (None, &None));
    }

    #[test]
    fn ends_for_devices_above_each_other() {
        let tree =
            Tree::new(&[("/sys/devices/virtual/a/dev", "1:0\n"), ("/sys/devices/virtual/a/slaves/x", "")]);
        std::fs::remove_file(tree.path("/sys/devices/virtual/a/slaves/x")).unwrap();
        tree.write_bytes("/sys/dev/block/x", b"");
        tree.link("/sys/dev/block/1:0", "../../devices/virtual/a");
        tree.link("/sys/devices/virtual/a/slaves/a", "../../a");
        assert_eq!(devices_beneath(&tree.root(), (1, 0)).unwrap().len(), 1);
        tree.write_bytes("/sys/devices/virtual/a/dev", b"1-0\n");
        assert!(devices_beneath(&tree.root(), (1, 0)).is_err());
        assert!(devices_beneath(&tree.root(), (9, 9)).is_err());
    }

    #[test]
    fn recognizes_pci_addresses() {
        assert!(is_pci_address("0000:00:02.0") && is_pci_address("10000:01:00.0"));
        for name in ["pci0000:00", "nvme0", "0000:00:02", "0000:00:0g.0", ""] {
            assert!(!is_pci_address(name), "{name}");
        }
    }

    #[test]
    fn finds_the_device_of_a_file() {
        let found = devices_beneath(&Root::system().unwrap(), device_of(Path::new("/")).unwrap());
        assert!(found.is_ok_and(|found| !found.is_empty()) || device_of(Path::new("/")).unwrap().0 == 0);
        assert!(device_of(Path::new("/no/such")).is_err());
    }
}
