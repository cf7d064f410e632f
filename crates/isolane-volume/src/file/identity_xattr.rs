//! Identity of a regular file, stored in an extended attribute.
//!
//! A copy of the file carries the attribute, and two copies on one host must not share an identity. So the
//! attribute names its file by inode number, birth time, file system, and path; any other file gets a new
//! identity. Without extended attributes, the identity is derived from the canonical path. Never reads or
//! changes the file's contents.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, XattrFlags, fgetxattr, fsetxattr, fstatvfs, fsync, statx};
use rustix::io::Errno;
use uuid::Uuid;

use crate::Identity;

/// Returns the identity of the file at its canonical path. The caller holds the file's lock.
pub(crate) fn identity_of_file(file: &File, canonical: &Path) -> Identity {
    let origin = FileOrigin::new(file, canonical);
    match read(file) {
        Ok(Some(xattr)) if xattr.origin.is_same_file(&origin) => {
            if xattr.origin != origin {
                write(file, &IdentityXattr { uuid: xattr.uuid, origin }).ok();
            }
            Identity { uuid: xattr.uuid }
        }
        Ok(found) => make(file, canonical, origin, found.is_some()),
        Err(_) => Identity::derived(canonical.as_os_str().as_bytes()),
    }
}

/// Returns the identity of a block device: derived from its WWID or UUID, else from its path.
pub(crate) fn identity_of_device(device: (u32, u32), canonical: &Path) -> Identity {
    let directory = format!("/sys/dev/block/{}:{}", device.0, device.1);
    let read =
        |file: &str| std::fs::read(format!("{directory}/{file}")).ok().map(|text| text.trim_ascii().to_vec());
    let names = ["wwid", "device/wwid", "uuid", "dm/uuid", "../wwid", "../device/wwid", "../uuid"];
    let disk = names.into_iter().filter_map(read).find(|name| !name.is_empty());
    match (disk, read("partition")) {
        (Some(disk), None) => Identity::derived(&disk),
        (Some(disk), Some(partition)) => Identity::derived(&[&disk[..], b" partition ", &partition].concat()),
        (None, _) => Identity::derived(canonical.as_os_str().as_bytes()),
    }
}

fn make(file: &File, canonical: &Path, origin: FileOrigin, is_copy: bool) -> Identity {
    let identity = Identity::random();
    match write(file, &IdentityXattr { uuid: identity.uuid, origin }) {
        Ok(()) if is_copy => {
            log::info!(
                "{}: copy of another volume, new identity {} (set another with uuid=)",
                canonical.display(),
                identity.uuid
            );
            identity
        }
        Ok(()) => identity,
        Err(error) => {
            log::debug!(
                "{}: no extended attribute ({error}), deriving the identity from the path",
                canonical.display()
            );
            Identity::derived(canonical.as_os_str().as_bytes())
        }
    }
}

/// Contents of the attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IdentityXattr {
    uuid: Uuid,
    origin: FileOrigin,
}

/// The file that an attribute was written for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileOrigin {
    inode: u64,
    /// Birth time in seconds and nanoseconds; 0 if unknown.
    btime: (i64, u32),
    file_system: u64,
    path: Vec<u8>,
}

impl FileOrigin {
    fn new(file: &File, canonical: &Path) -> FileOrigin {
        let inode = file.metadata().map_or(0, |metadata| metadata.ino());
        let stat = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok();
        let stat = stat.filter(|stat| stat.stx_mask & StatxFlags::BTIME.bits() != 0);
        let btime = stat.map_or((0, 0), |stat| (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec));
        let file_system = fstatvfs(file).map_or(0, |stat| stat.f_fsid);
        FileOrigin { inode, btime, file_system, path: canonical.as_os_str().as_bytes().to_owned() }
    }

    /// Whether this is the same file as `now`. A rename keeps everything but the path; a new device
    /// number may change the file system ID; a copy, a restored backup, and a snapshot under
    /// another path change more.
    fn is_same_file(&self, now: &FileOrigin) -> bool {
        let same_location = self.file_system == now.file_system || self.path == now.path;
        self.inode == now.inode && self.btime == now.btime && same_location
    }
}

impl IdentityXattr {
    /// Encodes `1 UUID inode seconds.nanoseconds file-system path`; the path is last because it may
    /// contain spaces.
    fn encode(&self) -> Vec<u8> {
        let FileOrigin { inode, btime, file_system, path } = &self.origin;
        let head = format!("1 {} {inode} {}.{} {file_system:x} ", self.uuid, btime.0, btime.1);
        [head.as_bytes(), path].concat()
    }

    fn decode(bytes: &[u8]) -> Option<IdentityXattr> {
        let mut fields = bytes.splitn(6, |&byte| byte == b' ');
        let mut field = || fields.next();
        if field()? != b"1" {
            return None;
        }
        let mut text = || std::str::from_utf8(field()?).ok();
        let uuid = Uuid::parse_str(text()?).ok()?;
        let inode = text()?.parse().ok()?;
        let (seconds, nanoseconds) = text()?.split_once('.')?;
        let btime = (seconds.parse().ok()?, nanoseconds.parse().ok()?);
        let file_system = u64::from_str_radix(text()?, 16).ok()?;
        let path = fields.next()?.to_owned();
        Some(IdentityXattr { uuid, origin: FileOrigin { inode, btime, file_system, path } })
    }
}

/// Reads the attribute of a file; an invalid one counts as another file's.
fn read(file: &File) -> Result<Option<IdentityXattr>, Errno> {
    let mut bytes = vec![0; MAX_XATTR_BYTES];
    match fgetxattr(file, NAME, &mut bytes[..]) {
        Ok(len) => Ok(IdentityXattr::decode(&bytes[..len])),
        Err(Errno::NODATA | Errno::RANGE) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the attribute and syncs it.
fn write(file: &File, xattr: &IdentityXattr) -> Result<(), Errno> {
    fsetxattr(file, NAME, &xattr.encode(), XattrFlags::empty())?;
    fsync(file)
}

const NAME: &str = "user.isolane.identity";
/// Length of the attribute with the longest path.
const MAX_XATTR_BYTES: usize = 4096 + 256;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn origin() -> FileOrigin {
        FileOrigin { inode: 7, btime: (-5, 9), file_system: 0xabc, path: b"/a b/\xff".to_vec() }
    }

    #[test]
    fn round_trips_xattr() {
        let xattr = IdentityXattr { uuid: Uuid::new_v4(), origin: origin() };
        assert_eq!(IdentityXattr::decode(&xattr.encode()), Some(xattr));
        for bytes in [&b""[..], b"1", b"2 x", b"1 nonsense 1 1.1 1 /", b"\xff\xff \xff"] {
            assert_eq!(IdentityXattr::decode(bytes), None);
        }
    }

    #[test]
    fn identity_survives_rename_but_not_copy() {
        let renamed = FileOrigin { path: b"/c".to_vec(), ..origin() };
        let remounted = FileOrigin { file_system: 1, ..origin() };
        let snapshot = FileOrigin { file_system: 1, path: b"/snap".to_vec(), ..origin() };
        let copy = FileOrigin { inode: 8, ..origin() };
        let reborn = FileOrigin { btime: (6, 6), ..origin() };
        let is_same = |other: &FileOrigin| origin().is_same_file(other);
        assert!(is_same(&renamed) && is_same(&remounted));
        assert!(!is_same(&snapshot) && !is_same(&copy) && !is_same(&reborn));
    }

    #[test]
    fn copied_file_gets_new_identity() {
        let directory = tempfile::tempdir_in(crate::file::tests::build_directory()).unwrap();
        let path = directory.path().join("disk.img");
        let file = File::create(&path).unwrap();
        let first = identity_of_file(&file, &path);
        assert_eq!(identity_of_file(&file, &path), first);
        if read(&file).is_err() {
            return; // No extended attributes here: the path is the identity, and copies differ in it.
        }
        let moved = directory.path().join("moved.img");
        fs::rename(&path, &moved).unwrap();
        assert_eq!(identity_of_file(&File::open(&moved).unwrap(), &moved), first);

        let copy = File::create(&path).unwrap();
        let xattr = IdentityXattr { uuid: first.uuid, origin: FileOrigin::new(&file, &moved) };
        write(&copy, &xattr).unwrap();
        let second = identity_of_file(&copy, &path);
        assert_ne!(second, first);
        assert_eq!(identity_of_file(&copy, &path), second);
    }
}
