//! Drives: disks that are part of this machine.

use std::path::Path;

use isolane_observe::snapshot::{Snapshot, Volume};

use super::LightError;
use crate::system::{
    BlockDevice, ReadError, Root, SMALL, decode_device_number, device_of, devices_beneath, if_missing,
};

/// A drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drive {
    /// Name, for example `nvme0n1`.
    pub name: String,
    /// Path in sysfs, and those of its controllers if the kernel combines several of them.
    paths: Vec<String>,
}

/// Directory of the devices that are no hardware.
const VIRTUAL: &str = "/sys/devices/virtual/";

impl Drive {
    /// Returns the drive beneath a device: `nvme0n1`, `/dev/disk/by-id/…`, or a partition.
    ///
    /// # Errors
    /// The device does not exist, or is on no drive or several drives.
    pub fn of_device(root: &Root, name: &str) -> Result<Drive, LightError> {
        let short = name.strip_prefix("/dev/").unwrap_or(name).replace('/', "!");
        let number = if root.is_system() && name.starts_with('/') {
            device_of(Path::new(name))
        } else {
            root.parse(&format!("/sys/class/block/{short}/dev"), SMALL, decode_device_number)
        };
        let number = number.map_err(|_| LightError::NoDevice(name.to_owned()))?;
        only(name, drives_beneath(root, number)?)
    }

    /// Returns the drive beneath a volume of a program.
    ///
    /// # Errors
    /// The volume is on no drive or several drives.
    pub fn of_volume(root: &Root, snapshot: &Snapshot, volume: &Volume) -> Result<Drive, LightError> {
        let mut drives = Vec::new();
        for volume in with_members(snapshot, volume) {
            let known = snapshot.devices.iter().find(|at| Some(&at.name) == volume.device.as_ref());
            let number = match (known, &volume.path) {
                (Some(device), _) => decode_device_number(&device.number).ok(),
                (None, Some(path)) if root.is_system() => device_of(Path::new(path)).ok(),
                _ => None,
            };
            let Some(number) = number else { continue };
            drives.extend(drives_beneath(root, number)?);
        }
        drives.sort_by(|a, b| a.name.cmp(&b.name));
        drives.dedup();
        only(&volume.name, drives)
    }

    /// Returns all drives.
    ///
    /// # Errors
    /// A directory that exists and cannot be read.
    pub fn all(root: &Root) -> Result<Vec<Drive>, ReadError> {
        let mut drives = Vec::new();
        for name in root.list("/sys/class/block").or_else(if_missing)? {
            // A device can vanish in the meantime.
            let Ok(path) = root.resolve(&format!("/sys/class/block/{name}")) else { continue };
            if !root.exists(&format!("{path}/partition")) {
                drives.extend(drive(root, name, path)?);
            }
        }
        Ok(drives)
    }

    pub(super) fn paths(&self) -> &[String] {
        &self.paths
    }
}

/// Returns the volume and all volumes beneath it.
fn with_members<'a>(snapshot: &'a Snapshot, volume: &'a Volume) -> Vec<&'a Volume> {
    let mut found = vec![volume];
    let mut at = 0;
    while let Some(above) = found.get(at).copied() {
        let is_new = |volume: &&Volume| !found.iter().any(|known| known.id == volume.id);
        let below = snapshot.volumes.iter().filter(|volume| volume.parent == Some(above.id));
        found.extend(below.filter(is_new).collect::<Vec<_>>());
        at += 1;
    }
    found
}

fn drives_beneath(root: &Root, number: (u32, u32)) -> Result<Vec<Drive>, ReadError> {
    let mut drives = Vec::new();
    let is_lowest = |block: &BlockDevice| block.below.is_empty();
    for block in devices_beneath(root, number)?.into_iter().filter(is_lowest) {
        drives.extend(drive(root, block.name, block.path)?);
    }
    Ok(drives)
}

/// Returns `None` for a device that is no hardware of this machine.
fn drive(root: &Root, name: String, path: String) -> Result<Option<Drive>, ReadError> {
    let mut paths = vec![path];
    // The disk of a drive with several controllers is a virtual device, next to links to its controllers.
    if let Some((subsystem, _)) = paths[0].rsplit_once('/').filter(|at| at.0.contains("/nvme-subsystem/")) {
        let is_controller = |name: &&String| {
            let number = name.strip_prefix("nvme").unwrap_or_default();
            !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
        };
        let subsystem = subsystem.to_owned();
        for controller in root.list(&subsystem)?.iter().filter(is_controller) {
            paths.extend(root.resolve(&format!("{subsystem}/{controller}")));
        }
    }
    let is_hardware = paths.iter().any(|path| !path.starts_with(VIRTUAL));
    Ok(is_hardware.then_some(Drive { name, paths }))
}

fn only(name: &str, mut drives: Vec<Drive>) -> Result<Drive, LightError> {
    let name = name.to_owned();
    match (drives.len(), drives.pop()) {
        (1, Some(drive)) => Ok(drive),
        (_, None) => Err(LightError::NoDrive(name)),
        (_, Some(last)) => {
            drives.push(last);
            Err(LightError::SeveralDrives {
                name,
                drives: drives.into_iter().map(|drive| drive.name).collect(),
            })
        }
    }
}
