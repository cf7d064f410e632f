//! Drives and network cards of the system.

use crate::system::{PciFunction, ReadError, Reason, Root, pci_functions};

/// A drive or a network card.
#[derive(Debug, Clone)]
pub(super) struct Card {
    /// Name of the drive or of the network interface.
    pub(super) name: String,
    /// Path of its directory in sysfs, with links.
    pub(super) path: String,
    /// The disk of the drive is not made of other disks.
    pub(super) is_drive: bool,
    /// The PCI function, unless the device is on another bus.
    pub(super) function: Option<PciFunction>,
}

/// Returns all drives, then all network cards. Virtual devices are left out.
///
/// # Errors
/// A file that exists and cannot be read.
pub(super) fn cards(root: &Root) -> Result<Vec<Card>, ReadError> {
    let mut found = Vec::new();
    for (class, is_drive) in [("/sys/block", true), ("/sys/class/net", false)] {
        for name in root.list(class)? {
            let path = format!("{class}/{name}");
            let real = match root.resolve(&path) {
                Ok(real) => real,
                // The device was removed in the meantime.
                Err(error) if error.reason == Reason::Missing => continue,
                Err(error) => return Err(error),
            };
            if !real.starts_with("/sys/devices/virtual/") {
                let function = pci_functions(root, &real)?.into_iter().next();
                found.push(Card { name, path, is_drive, function });
            }
        }
    }
    Ok(found)
}
