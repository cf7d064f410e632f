//! The identity of a regular file, kept in an extended attribute of its own.
//!
//! The attribute travels with a copy, and two copies on one host must not collide. So it names the file it
//! was made for by inode number, time of birth, file system and path; a file that is another one gets a new
//! identity. Where there are no extended attributes, the identity is derived from the canonical path. Nothing
//! here reads or changes the file's contents.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, XattrFlags, fgetxattr, fsetxattr, fstatvfs, fsync, statx};
use rustix::io::Errno;
use uuid::Uuid;

use crate::Identity;

/// The identity of the file at its canonical path. The caller holds the file's lock.
pub(crate) fn identity_of_file(file: &File, canonical: &Path) -> Identity {
    let place = Place::of(file, canonical);
    match read(file) {
        Ok(Some(mark)) if mark.place.is_same_file(&place) => {
            if mark.place != place {
                write(file, &Mark { uuid: mark.uuid, place }).ok();
            }
            Identity { uuid: mark.uuid }
        }
        Ok(found) => make(file, canonical, place, found.is_some()),
        Err(_) => Identity::derived(canonical.as_os_str().as_bytes()),
    }
}

/// The identity of a block device: what the device says of itself, else derived from its path.
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

fn make(file: &File, canonical: &Path, place: Place, is_copy: bool) -> Identity {
    let identity = Identity::random();
    match write(file, &Mark { uuid: identity.uuid, place }) {
        Ok(()) if is_copy => {
            log::info!(
                "{}: it carries the identity of another file, as a copy does; it is now {} (uuid= gives it another)",
                canonical.display(),
                identity.uuid
            );
            identity
        }
        Ok(()) => identity,
        Err(error) => {
            log::debug!("{}: no extended attribute ({error}); its path is its identity", canonical.display());
            Identity::derived(canonical.as_os_str().as_bytes())
        }
    }
}

/// What the attribute holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    uuid: Uuid,
    place: Place,
}

/// Which file it was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    inode: u64,
    /// Seconds and nanoseconds of birth; 0 where unknown.
    born: (i64, u32),
    file_system: u64,
    path: Vec<u8>,
}

impl Place {
    fn of(file: &File, canonical: &Path) -> Place {
        let inode = file.metadata().map_or(0, |metadata| metadata.ino());
        let stat = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok();
        let stat = stat.filter(|stat| stat.stx_mask & StatxFlags::BTIME.bits() != 0);
        let born = stat.map_or((0, 0), |stat| (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec));
        let file_system = fstatvfs(file).map_or(0, |stat| stat.f_fsid);
        Place { inode, born, file_system, path: canonical.as_os_str().as_bytes().to_owned() }
    }

    /// A rename keeps all but the path; a new device number may change the file system's id; a copy, a
    /// restored backup and a snapshot under another path change more.
    fn is_same_file(&self, now: &Place) -> bool {
        let is_same_place = self.file_system == now.file_system || self.path == now.path;
        self.inode == now.inode && self.born == now.born && is_same_place
    }
}

impl Mark {
    /// `1 UUID inode seconds.nanoseconds file-system path`; the path is last because it may hold anything.
    fn encode(&self) -> Vec<u8> {
        let Place { inode, born, file_system, path } = &self.place;
        let head = format!("1 {} {inode} {}.{} {file_system:x} ", self.uuid, born.0, born.1);
        [head.as_bytes(), path].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Mark> {
        let mut fields = bytes.splitn(6, |&byte| byte == b' ');
        let mut field = || fields.next();
        if field()? != b"1" {
            return None;
        }
        let mut text = || std::str::from_utf8(field()?).ok();
        let uuid = Uuid::parse_str(text()?).ok()?;
        let inode = text()?.parse().ok()?;
        let (seconds, nanoseconds) = text()?.split_once('.')?;
        let born = (seconds.parse().ok()?, nanoseconds.parse().ok()?);
        let file_system = u64::from_str_radix(text()?, 16).ok()?;
        let path = fields.next()?.to_owned();
        Some(Mark { uuid, place: Place { inode, born, file_system, path } })
    }
}

/// The mark of a file; a mark that cannot be read counts as that of another file.
fn read(file: &File) -> Result<Option<Mark>, Errno> {
    let mut bytes = vec![0; MARK_MAX];
    match fgetxattr(file, NAME, &mut bytes[..]) {
        Ok(len) => Ok(Mark::decode(&bytes[..len])),
        Err(Errno::NODATA | Errno::RANGE) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes the mark and makes it durable.
fn write(file: &File, mark: &Mark) -> Result<(), Errno> {
    fsetxattr(file, NAME, &mark.encode(), XattrFlags::empty())?;
    fsync(file)
}

const NAME: &str = "user.isolane.identity";
/// An encoded mark with the longest path there is.
const MARK_MAX: usize = 4096 + 256;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn place() -> Place {
        Place { inode: 7, born: (-5, 9), file_system: 0xabc, path: b"/a b/\xff".to_vec() }
    }

    #[test]
    fn a_mark_survives_its_encoding_whatever_the_path() {
        let mark = Mark { uuid: Uuid::new_v4(), place: place() };
        assert_eq!(Mark::decode(&mark.encode()), Some(mark));
        for bytes in [&b""[..], b"1", b"2 x", b"1 nonsense 1 1.1 1 /", b"\xff\xff \xff"] {
            assert_eq!(Mark::decode(bytes), None);
        }
    }

    #[test]
    fn a_rename_keeps_the_identity_and_a_copy_does_not() {
        let renamed = Place { path: b"/c".to_vec(), ..place() };
        let remounted = Place { file_system: 1, ..place() };
        let snapshot = Place { file_system: 1, path: b"/snap".to_vec(), ..place() };
        let copy = Place { inode: 8, ..place() };
        let reborn = Place { born: (6, 6), ..place() };
        let is_same = |other: &Place| place().is_same_file(other);
        assert!(is_same(&renamed) && is_same(&remounted));
        assert!(!is_same(&snapshot) && !is_same(&copy) && !is_same(&reborn));
    }

    #[test]
    fn a_file_keeps_its_identity_and_its_copy_gets_another() {
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
        let mark = Mark { uuid: first.uuid, place: Place::of(&file, &moved) };
        write(&copy, &mark).unwrap();
        let second = identity_of_file(&copy, &path);
        assert_ne!(second, first);
        assert_eq!(identity_of_file(&copy, &path), second);
    }
}
