//! The memory file that an upgrade in place passes on: the present configuration and numbers of descriptors, then the state
//! of the target.
//!
//! Invariant: another program that does not know all of it refuses it: each change of it increments
//! [`FrozenState::VERSION`](isolane_target::FrozenState::VERSION).

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};

use isolane_reactor::inherited;
use isolane_volume::spec::VolumeSpec;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Everything but the state of the target.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Handover {
    /// Number of upgrades of this process.
    pub upgrades: u64,
    /// Descriptors of the open files of volumes.
    pub files: Vec<RawFd>,
    /// Descriptor of the lock of the state directory.
    #[serde(default)]
    pub state_lock: Option<RawFd>,
    /// The configuration file, if there is one.
    pub file: Option<ConfigTexts>,
    /// The subsystems.
    pub subsystems: Vec<HandedSubsystem>,
}

/// A configuration file, and what the target has of it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigTexts {
    /// The text that was applied last.
    pub text: String,
    /// What the target does, also by changes that are not in the file.
    pub running: String,
    /// The same, but as each object was when the target began to serve it.
    pub started: String,
}

/// The namespaces of a subsystem, as operators want them.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandedSubsystem {
    /// Name of the subsystem.
    pub nqn: String,
    /// Its namespaces, ordered by ID.
    pub namespaces: Vec<HandedNamespace>,
}

/// A namespace, as operators want it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandedNamespace {
    /// Its ID.
    pub nsid: u32,
    /// How its volume is opened.
    pub spec: VolumeSpec,
    /// Protected from writes, also after its volume was opened again or replaced.
    pub is_protected: bool,
    /// Size of its volume in bytes; `None` if it is offline.
    pub bytes: Option<u64>,
    /// Why its volume could not be opened, if an operator has not closed it.
    pub reason: Option<String>,
    /// Data of its memory volumes, in the order of the specification.
    #[serde(default)]
    pub memory: Vec<HandedMemory>,
}

/// Data of a memory volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandedMemory {
    /// Descriptor of a memory file.
    pub descriptor: RawFd,
    /// Size of the volume.
    pub bytes: u64,
    /// Identity of the volume.
    pub uuid: Uuid,
    /// Period in which no completed write is lost, as hosts know it.
    pub generation: Uuid,
}

impl HandedNamespace {
    /// Whether its volume is not open.
    pub fn is_offline(&self) -> bool {
        self.bytes.is_none()
    }
}

impl Handover {
    /// Takes the files. One that was not inherited is opened again by its path.
    pub fn take_files(&self) -> Vec<File> {
        let take = |number: &RawFd| inherited::take(*number).map(File::from);
        self.files.iter().map(take).filter_map(Result::ok).collect()
    }

    /// Takes the lock of the state directory. One that was not inherited is taken again.
    pub fn take_state_lock(&self) -> Option<File> {
        inherited::take(self.state_lock?).map(File::from).ok()
    }
}

/// Writes a sealed memory file that programs inherit.
pub fn write(handover: &Handover, state: &[u8]) -> io::Result<OwnedFd> {
    let sealed = MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag.
    let memory = memfd_create(NAME, sealed | MemfdFlags::NOEXEC_SEAL).or_else(|error| match error {
        Errno::INVAL => memfd_create(NAME, sealed),
        error => Err(error),
    })?;
    let mut file = File::from(memory);
    let header = serde_json::to_vec(handover)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    file.write_all(state)?;
    file.rewind()?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}

/// Reads a memory file: the header, and the state.
pub fn read(mut memory: impl Read) -> io::Result<(Handover, Vec<u8>)> {
    let mut bytes = Vec::new();
    memory.read_to_end(&mut bytes)?;
    let truncated = || io::Error::new(io::ErrorKind::InvalidData, "it is truncated");
    let (len, rest) = bytes.split_first_chunk().ok_or_else(truncated)?;
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| truncated())?;
    let (header, state) = rest.split_at_checked(len).ok_or_else(truncated)?;
    Ok((serde_json::from_slice(header)?, state.to_vec()))
}

/// Sets whether programs that this one executes inherit a descriptor.
pub fn set_inherited(descriptor: impl AsFd, inherited: bool) -> io::Result<()> {
    let flags = if inherited { FdFlags::empty() } else { FdFlags::CLOEXEC };
    Ok(fcntl_setfd(descriptor, flags)?)
}

/// Returns a copy of a descriptor that programs inherit.
pub fn inheritable(descriptor: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::dup(descriptor)?)
}

const NAME: &str = "isolane-upgrade";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_file_is_read_as_written() {
        let handover =
            Handover { upgrades: 3, files: vec![7, 9], state_lock: Some(5), ..Handover::default() };
        let memory = File::from(write(&handover, b"state").unwrap());
        assert!((&memory).write(b"x").is_err(), "it is sealed");
        assert_eq!(read(&memory).unwrap(), (handover, b"state".to_vec()));
    }

    #[test]
    fn other_bytes_are_refused() {
        let mut random = fastrand::Rng::with_seed(1);
        for len in 0..200 {
            let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
            assert!(read(&bytes[..]).is_err());
        }
        assert!(read(&[2, 0, 0, 0, 0, 0, 0, 0, b'{', b'}'][..]).is_err());
    }
}
