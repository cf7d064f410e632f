//! A volume and its members as plain data, for statistics.

use std::fmt;
use std::path::PathBuf;

/// A volume and its members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeTree {
    /// Name for log lines: a path, or `mem:1G`. Volumes in memory can have the same name.
    pub name: String,
    /// Kind: one of [`kind`], or a word of the crate that implements the volume. Empty if it is not known.
    pub kind: &'static str,
    /// Name of a group of volumes that are expected to behave alike (`group=NAME`). A filter is in the group of its
    /// member unless it has its own.
    pub group: Option<String>,
    /// Absolute path of the file or device, without links.
    pub path: Option<PathBuf>,
    /// Argument and options of a nested volume, such as `on` and `write`.
    pub parameters: Vec<(String, String)>,
    /// State of a mirror.
    pub mirror: Option<MirrorState>,
    /// Members in the order of the specification, except those that a mirror could not open.
    pub members: Vec<VolumeTree>,
}

/// Kinds of volumes. Others are the first word of a specification, such as `stripe`.
pub mod kind {
    /// Blocks in memory.
    pub const MEMORY: &str = "memory";
    /// Reads zeroes, drops writes.
    pub const NULL: &str = "null";
    /// Regular file.
    pub const FILE: &str = "file";
    /// Block device.
    pub const DEVICE: &str = "device";
    /// Namespace of another target.
    pub const REMOTE: &str = "remote";
}

/// State of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorState {
    /// Both members have all data.
    InSync,
    /// Regions are copied from one member to the other.
    Copying {
        /// Position of the member that is written.
        to: usize,
        /// Copied part of the regions, in percent.
        percent: u64,
    },
    /// One member is missing or was removed.
    Degraded {
        /// Position of that member in the specification.
        without: usize,
    },
    /// All changes fail.
    Failed,
}

impl VolumeTree {
    /// Returns a volume without members.
    pub fn new(name: impl Into<String>, kind: &'static str) -> VolumeTree {
        VolumeTree { name: name.into(), kind, ..VolumeTree::default() }
    }

    /// Returns the parameter with this name.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the filters around a volume that delay or fail its requests on purpose, from the outermost inward.
    pub fn injected_faults(&self) -> impl Iterator<Item = &VolumeTree> {
        std::iter::successors(Some(self), |tree| tree.only_member())
            .filter(|tree| INJECTORS.contains(&tree.kind))
    }

    fn only_member(&self) -> Option<&VolumeTree> {
        self.members.first().filter(|_| self.members.len() == 1)
    }

    /// Returns the leaves: the volumes without members that hold the data.
    pub fn leaves(&self) -> Vec<&VolumeTree> {
        if self.members.is_empty() {
            return vec![self];
        }
        self.members.iter().flat_map(VolumeTree::leaves).collect()
    }
}

/// Shows kind and parameters as in a specification, without members: `delay:200us-400us,on=write`.
impl fmt::Display for VolumeTree {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.kind)?;
        self.parameters.iter().try_for_each(|(key, value)| match key.as_str() {
            ARGUMENT => write!(formatter, ":{value}"),
            key => write!(formatter, ",{key}={value}"),
        })
    }
}

/// Name of the parameter that follows the kind and a colon, such as `5ms` in `delay:5ms:A`.
pub const ARGUMENT: &str = "argument";
/// Kinds of filters that delay or fail requests.
const INJECTORS: [&str; 3] = ["delay", "fault", "stall"];
