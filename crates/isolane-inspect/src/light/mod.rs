//! Lights of the slot of a drive: locate and fault.
//!
//! | module | interface, in the order of preference |
//! |---|---|
//! | `npem` | LEDs of native PCIe enclosure management, Linux 6.12 |
//! | `ses` | SCSI enclosures |
//! | `vmd` | slots behind an Intel VMD |
//! | `ledctl` | the program `ledctl` of ledmon |
//!
//! [`Drive`] finds a drive, [`find`] its slot, and [`Writer`] changes a light in a dedicated thread, because a write can
//! take 90 s.
//!
//! Invariant: only [`Writer::set`] changes a light, at most one of a slot in [`PAUSE`].

mod drive;
mod ledctl;
mod light_error;
mod npem;
mod ses;
mod vmd;
mod writer;

use std::time::Duration;

use crate::system::{ReadError, Root, if_missing};

pub use self::drive::Drive;
pub use self::light_error::LightError;
pub use self::writer::{PAUSE, Pending, Writer};

use self::ledctl::Ledctl;

/// A light of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Light {
    /// Shows where the drive is.
    Locate,
    /// Marks the drive as failed.
    Fault,
}

impl Light {
    /// Returns `locate` or `fault`.
    pub const fn name(self) -> &'static str {
        match self {
            Light::Locate => "locate",
            Light::Fault => "fault",
        }
    }
}

/// Interface of the lights of a slot, in the order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interface {
    /// LEDs of native PCIe enclosure management.
    Npem,
    /// SCSI enclosure services.
    Ses,
    /// Hot-plug slot behind an Intel VMD.
    Vmd,
    /// The program `ledctl`.
    Ledctl,
}

impl Interface {
    /// Returns the name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Interface::Npem => "NPEM",
            Interface::Ses => "SES",
            Interface::Vmd => "VMD",
            Interface::Ledctl => "ledctl",
        }
    }

    /// Returns the longest time of a read or write. The kernel's limits are 1 s for NPEM and 90 s for SES.
    pub const fn limit(self) -> Duration {
        match self {
            Interface::Npem => Duration::from_secs(5),
            Interface::Vmd => Duration::from_secs(10),
            Interface::Ses | Interface::Ledctl => Duration::from_secs(120),
        }
    }
}

/// A slot with lights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Interface of its lights.
    pub interface: Interface,
    /// Name, as the system shows it.
    pub name: String,
    place: Place,
    control: Control,
}

/// Place of a slot, which identifies its drives.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// Address of a PCI function, or of a slot without the number of the function.
    Pci(String),
    /// Device in sysfs, without links. `None` if the slot is empty.
    Device(Option<String>),
    /// Any drive: the program finds the slot.
    Drive(String),
}

/// Access to the lights of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Control {
    Files(Vec<LightFile>),
    Ledctl(Ledctl),
}

/// File of sysfs that changes a light.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LightFile {
    light: Light,
    path: String,
    on: &'static str,
    off: &'static str,
}

impl LightFile {
    /// Returns the file of a light that is 0 or another number.
    fn switch(light: Light, path: String) -> LightFile {
        LightFile { light, path, on: "1", off: "0" }
    }

    fn is_on(&self, word: &str) -> bool {
        word == self.on || (self.off == "0" && word != "0")
    }
}

impl Slot {
    /// Returns the lights that the slot has.
    pub fn lights(&self) -> Vec<Light> {
        match &self.control {
            Control::Files(files) => files.iter().map(|file| file.light).collect(),
            Control::Ledctl(_) => vec![Light::Locate, Light::Fault],
        }
    }

    /// Returns the number of levels between a drive and the slot, if the drive is in the slot.
    fn distance(&self, drive: &Drive) -> Option<usize> {
        let is_at = |address: &str, name: &str| {
            name.strip_prefix(address).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        match &self.place {
            Place::Pci(address) => {
                let levels = |path: &String| path.rsplit('/').position(|name| is_at(address, name));
                drive.paths().iter().filter_map(levels).min()
            }
            Place::Device(device) => {
                let is_beneath = |path: &&String| {
                    device.as_ref().is_some_and(|device| {
                        path.strip_prefix(device.as_str()).is_some_and(|rest| rest.starts_with('/'))
                    })
                };
                drive.paths().iter().find(is_beneath).map(|_| 0)
            }
            Place::Drive(name) => (*name == drive.name).then_some(0),
        }
    }

    /// Returns the lights that are on, `None` if the interface cannot read them.
    fn read(&self, root: &Root) -> Result<Option<Vec<Light>>, LightError> {
        let Control::Files(files) = &self.control else { return Ok(None) };
        let mut lit = Vec::new();
        for file in files {
            let word = root.word(&file.path)?;
            lit.extend(file.is_on(&word).then_some(file.light));
        }
        Ok(Some(lit))
    }

    /// Changes a light. May block.
    fn write(&self, root: &Root, light: Light, on: bool, limit: Duration) -> Result<(), LightError> {
        match &self.control {
            Control::Ledctl(ledctl) => ledctl.set(light, on, limit),
            Control::Files(files) => {
                let file = files.iter().find(|file| file.light == light);
                let file = file.ok_or_else(|| LightError::NoLight { slot: self.shown(), light })?;
                let text = if on { file.on } else { file.off };
                root.write(&file.path, text)
                    .map_err(|error| LightError::NotWritten { slot: self.shown(), error })
            }
        }
    }

    /// Returns interface and name.
    fn shown(&self) -> String {
        format!("{} slot {}", self.interface.name(), crate::text::shown_name(&self.name, 80))
    }
}

impl std::fmt::Display for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

/// Returns all slots that the kernel shows.
///
/// # Errors
/// A directory that exists and cannot be read.
pub fn slots(root: &Root) -> Result<Vec<Slot>, ReadError> {
    Ok([npem::slots(root)?, ses::slots(root)?, vmd::slots(root)?].concat())
}

/// Returns the slot of a drive among all slots, by the first interface that has one; the nearest, if several ports above
/// the drive have lights.
pub fn choose<'a>(slots: &'a [Slot], drive: &Drive) -> Option<&'a Slot> {
    let held = slots.iter().filter_map(|slot| Some((slot.interface, slot.distance(drive)?, slot)));
    held.min_by_key(|(interface, distance, _)| (*interface, *distance)).map(|(_, _, slot)| slot)
}

/// Returns the slot of a drive.
///
/// # Errors
/// A directory cannot be read, or no interface has a slot for the drive.
pub fn find(root: &Root, drive: &Drive) -> Result<Slot, LightError> {
    let slots = slots(root)?;
    let found = choose(&slots, drive).cloned().or_else(|| ledctl::slot(root, drive));
    found.ok_or_else(|| LightError::NoSlot(drive.name.clone()))
}

/// Returns the path of `ledctl`, if it is installed.
pub fn ledctl_path(root: &Root) -> Option<std::path::PathBuf> {
    ledctl::path(root)
}

/// Returns the PID of a running `ledmon`, which sets all lights but locate by the state of RAID arrays every few seconds.
///
/// # Errors
/// `/proc` cannot be read.
pub fn ledmon(root: &Root) -> Result<Option<u32>, ReadError> {
    let pids = root.list("/proc").or_else(if_missing)?;
    let is_ledmon = |pid: &u32| root.word(&format!("/proc/{pid}/comm")).is_ok_and(|name| name == "ledmon");
    Ok(pids.iter().filter_map(|name| name.parse().ok()).find(is_ledmon))
}

#[cfg(test)]
pub(crate) mod tests;
