//! Device, space, and file system of a volume's file, which system calls return.

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};

use super::cgroup::decode_counter;
use super::read_error::{Malformed, ReadError, Reason};
use super::root::{Root, SMALL};

/// File or block device of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFile {
    /// Number of the block device, or of the device of the file system: major, minor.
    pub device: (u32, u32),
    /// Size in bytes, 0 for a block device.
    pub size_bytes: u64,
    /// Allocated part of it, in bytes.
    pub allocated_bytes: u64,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Blocks that any user can allocate.
    pub available_blocks: u64,
    /// Number of the kind of file system.
    pub file_system: u64,
    /// Alignment of memory for direct I/O, 0 without direct I/O. Kernels before Linux 6.1 do not report it.
    pub direct_io_alignment: Option<u64>,
}

impl VolumeFile {
    /// Returns the state of a file. A copy of a system has it in a file below `/isolane/volumes`.
    ///
    /// # Errors
    /// The path and the reason.
    pub fn read(root: &Root, path: &str) -> Result<VolumeFile, ReadError> {
        let place = format!("/isolane/volumes/{}", path.trim_start_matches('/'));
        let result = root.text(&place, SMALL, || query(path).map(|file| file.encode()).map_err(Reason::from));
        let file = result.and_then(|text| {
            let malformed = |error| ReadError { path: place, reason: Reason::Malformed(error) };
            decode_volume_file(&text).map_err(malformed)
        });
        file.map_err(|error| ReadError { path: path.to_owned(), ..error })
    }

    fn encode(&self) -> String {
        let alignment = self.direct_io_alignment;
        let alignment = alignment.map_or(String::new(), |bytes| format!("direct_io_alignment {bytes}\n"));
        format!(
            "major {}\nminor {}\nsize {}\nallocated {}\nblocks {}\navailable_blocks {}\nfile_system {}\n{alignment}",
            self.device.0,
            self.device.1,
            self.size_bytes,
            self.allocated_bytes,
            self.blocks,
            self.available_blocks,
            self.file_system,
        )
    }
}

fn query(path: &str) -> Result<VolumeFile, rustix::io::Errno> {
    // Since Linux 6.1.
    const DIOALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);
    let file = rustix::fs::stat(path)?;
    let (space, kind) = (rustix::fs::statvfs(path)?, rustix::fs::statfs(path)?.f_type);
    let direct = rustix::fs::statx(CWD, path, AtFlags::empty(), DIOALIGN)?;
    let is_device = FileType::from_raw_mode(file.st_mode) == FileType::BlockDevice;
    let device = if is_device { file.st_rdev } else { file.st_dev };
    let has_alignment = direct.stx_mask & DIOALIGN.bits() != 0;
    Ok(VolumeFile {
        device: (rustix::fs::major(device), rustix::fs::minor(device)),
        size_bytes: u64::try_from(file.st_size).unwrap_or_default(),
        allocated_bytes: u64::try_from(file.st_blocks).unwrap_or_default().saturating_mul(512),
        blocks: space.f_blocks,
        available_blocks: space.f_bavail,
        file_system: kind as u64 & 0xffff_ffff,
        direct_io_alignment: has_alignment.then_some(direct.stx_dio_mem_align.into()),
    })
}

/// Decodes the state of a file.
///
/// # Errors
/// A number is missing.
pub fn decode_volume_file(text: &str) -> Result<VolumeFile, Malformed> {
    let number = |name| decode_counter(text, name);
    let device = |name| number(name).and_then(|it| it.try_into().map_err(|_| Malformed::at(0, "a device")));
    let has_alignment = text.contains("direct_io_alignment");
    Ok(VolumeFile {
        device: (device("major")?, device("minor")?),
        size_bytes: number("size")?,
        allocated_bytes: number("allocated")?,
        blocks: number("blocks")?,
        available_blocks: number("available_blocks")?,
        file_system: number("file_system")?,
        direct_io_alignment: has_alignment.then(|| number("direct_io_alignment")).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::device_of;

    #[test]
    fn describes_a_file_of_the_system() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [1; 10_000]).unwrap();
        let path = file.path().to_str().unwrap();
        let found = VolumeFile::read(&Root::system().unwrap(), path).unwrap();
        assert_eq!((found.size_bytes, found.device), (10_000, device_of(file.path()).unwrap()));
        assert!(found.blocks >= found.available_blocks && found.file_system != 0, "{found:?}");
        assert_eq!(decode_volume_file(&found.encode()).unwrap(), found);
        let error = VolumeFile::read(&Root::system().unwrap(), "/no/such").unwrap_err();
        assert_eq!((&*error.path, error.reason), ("/no/such", Reason::Missing));
    }

    #[test]
    fn rejects_malformed_descriptions() {
        let text = "major 259\nminor 1\nsize 1\nallocated 2\nblocks 3\navailable_blocks 4\nfile_system 5\n";
        let file = decode_volume_file(text).unwrap();
        assert_eq!((file.device, file.direct_io_alignment), ((259, 1), None));
        for line in text.lines() {
            assert!(decode_volume_file(&text.replace(line, "")).is_err(), "{line}");
        }
        for line in ["direct_io_alignment x\n", "major 99999999999\n"] {
            assert!(decode_volume_file(&format!("{line}{text}")).is_err(), "{line}");
        }
    }
}
