//! How a path becomes a volume: created if asked for, opened, locked, measured, and recognised.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use isolane_reactor::file::may_hang;
use rustix::fs::{FallocateFlags, OFlags, fallocate, ioctl_blkpbszget, ioctl_blksszget, major, minor};
use rustix::io::Errno;

use super::{Abilities, FileMachine, FileVolume, create, direct, holder, lock, mark};
use crate::spec::{VolumeSpec, format_size};
use crate::{Generation, Geometry, Identity, OpenError, RestartLoss};

impl FileVolume {
    /// Opens the file or device at `path`; creates a sparse file of `size` bytes if there is none.
    pub fn open(spec: &VolumeSpec, path: &Path, size: Option<u64>) -> Result<FileVolume, OpenError> {
        let name = spec.name();
        create_if_missing(&name, path, size, spec.read_only)?;
        let canonical = fs::canonicalize(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if is_among_devices(path) => {
                OpenError::new(&name, "there is no such device", "check its name with lsblk")
            }
            _ => explain(&name, &error, spec.read_only),
        })?;
        let device = device_number(&name, &canonical)?;
        let file = match device {
            None => open_file(&name, &canonical, spec)?,
            Some(device) => open_device(&name, &canonical, device, spec)?,
        };
        let blocks = measure(&name, &file, spec, size)?;
        warn_if_torn(&name, &file, spec.block_size, device);
        let identity = identity(&file, &canonical, device, spec);
        let is_direct = !spec.is_buffered && direct::switch_to_direct(&file, spec.block_size);
        let how = if is_direct { "direct I/O" } else { "through the page cache" };
        log::info!("{name}: {}, {how}", format_size(blocks * u64::from(spec.block_size)));

        let abilities = abilities(&file, device.is_some(), spec.read_only);
        let geometry = geometry(spec, blocks, device.is_some(), &abilities);
        let loses = if geometry.volatile_cache { RestartLoss::Cache } else { RestartLoss::Nothing };
        let generation = Generation::of_machine(loses);
        if generation.is_none() {
            log::info!(
                "{name}: the kernel tells no boot ID, so hosts cannot tell a restart from a network break"
            );
        }
        let may_hang = device.is_none() && may_hang(&file);
        let machine = FileMachine::new(name, geometry, identity, abilities, is_direct);
        Ok(FileVolume {
            machine,
            file: Arc::new(file),
            is_device: device.is_some(),
            may_hang,
            generation,
            unchecked: Default::default(),
        })
    }
}

fn create_if_missing(
    name: &str,
    path: &Path,
    size: Option<u64>,
    is_read_only: bool,
) -> Result<(), OpenError> {
    let Some(size) = size else { return Ok(()) };
    if fs::exists(path).map_err(|error| explain(name, &error, is_read_only))? {
        return Ok(());
    }
    if is_among_devices(path) {
        return Err(OpenError::new(name, "there is no such device", "check its name with lsblk"));
    }
    if is_read_only {
        let reason = "there is no such file, and an empty one is of no use to readers";
        return Err(OpenError::new(name, reason, "leave out ro, or give the path of a file with data"));
    }
    create::create_sparse(path, size).map_err(|error| {
        let reason = format!("it cannot be created with {} ({error})", format_size(size));
        OpenError::new(
            name,
            reason,
            "check the directory, its permissions and the largest size of its file system",
        )
    })
}

/// Returns `true` if `path` is where the system keeps devices, so that a regular file there is a mistake;
/// `/dev/shm` is for files.
fn is_among_devices(path: &Path) -> bool {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// The number of a block device, `None` for a regular file, an error for all else.
fn device_number(name: &str, path: &Path) -> Result<Option<(u32, u32)>, OpenError> {
    let metadata = fs::metadata(path).map_err(|error| explain(name, &error, false))?;
    let kind = metadata.file_type();
    if kind.is_block_device() {
        return Ok(Some((major(metadata.rdev()), minor(metadata.rdev()))));
    }
    if kind.is_file() {
        return Ok(None);
    }
    let what = if kind.is_dir() { "a directory" } else { "neither a regular file nor a block device" };
    Err(OpenError::new(
        name,
        format!("it is {what}"),
        "give the path of a file (with size=10G to create one) or a device",
    ))
}

fn open_file(name: &str, path: &Path, spec: &VolumeSpec) -> Result<File, OpenError> {
    let opened = OpenOptions::new().read(true).write(!spec.read_only).open(path);
    let file = opened.map_err(|error| explain(name, &error, spec.read_only))?;
    lock::lock(name, path, &file, !spec.read_only)?;
    Ok(file)
}

fn open_device(name: &str, path: &Path, device: (u32, u32), spec: &VolumeSpec) -> Result<File, OpenError> {
    let exclusive = OFlags::EXCL.bits() as i32;
    let open = || OpenOptions::new().read(true).write(!spec.read_only).custom_flags(exclusive).open(path);
    let is_orphaned = |opened: &io::Result<File>| {
        opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
            && !holder::is_claimed(path, device)
    };
    let opened = lock::wait_for_the_dead(name, open, is_orphaned);
    let file = opened.map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => lock::busy_device(name, path, device),
        _ => explain(name, &error, spec.read_only),
    })?;
    let logical = ioctl_blksszget(&file).unwrap_or(512);
    if logical > spec.block_size {
        let reason =
            format!("its own blocks are of {logical} bytes, which {} does not divide into", spec.block_size);
        return Err(OpenError::new(name, reason, format!("add block-size={logical}")));
    }
    Ok(file)
}

/// The number of whole blocks.
fn measure(name: &str, file: &File, spec: &VolumeSpec, size: Option<u64>) -> Result<u64, OpenError> {
    // Works for files and devices alike.
    let mut handle = file;
    let bytes = handle.seek(SeekFrom::End(0)).map_err(|error| explain(name, &error, spec.read_only))?;
    let block_size = u64::from(spec.block_size);
    if bytes < block_size {
        let reason = match bytes {
            0 => "it is empty".to_owned(),
            _ => format!("it holds {bytes} bytes, less than one block of {block_size}"),
        };
        let wanted = size.map_or_else(|| "10G".to_owned(), format_size);
        let remedy = format!("give it a size with `truncate -s {wanted} {name}`");
        return Err(OpenError::new(name, reason, remedy));
    }
    if let Some(size) = size.filter(|size| *size != bytes) {
        let reason = format!("it exists with {} instead of {}", format_size(bytes), format_size(size));
        return Err(OpenError::new(
            name,
            reason,
            "leave out size= to serve it as it is, or give another path",
        ));
    }
    if !bytes.is_multiple_of(block_size) {
        log::warn!("{name}: the last {} bytes are no whole block and are not served", bytes % block_size);
    }
    Ok(bytes / block_size)
}

/// One block is always promised whole, also when the power fails (AWUPF is 0's based); a disk that writes 512
/// bytes at a time may tear a block of 4 KiB.
fn warn_if_torn(name: &str, file: &File, block_size: u32, device: Option<(u32, u32)>) {
    let physical = match device {
        Some(_) => ioctl_blkpbszget(file).ok(),
        None => file.metadata().ok().and_then(|metadata| physical_block_size(metadata.dev())),
    };
    if physical.is_none_or(|physical| physical < block_size) && block_size > 512 {
        let known =
            physical.map_or_else(|| "of unknown size".to_owned(), |physical| format!("of {physical} bytes"));
        log::warn!(
            "{name}: the disk below has physical blocks {known}, so a power cut may tear a block of {block_size}; \
             use block-size=512 if its users rely on whole blocks"
        );
    }
}

/// Of the device that a file system lies on, where there is one.
fn physical_block_size(device: u64) -> Option<u32> {
    let directory = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let read = |file: &str| fs::read_to_string(format!("{directory}/{file}")).ok();
    let text = read("queue/physical_block_size").or_else(|| read("../queue/physical_block_size"))?;
    text.trim().parse().ok()
}

fn identity(file: &File, canonical: &Path, device: Option<(u32, u32)>, spec: &VolumeSpec) -> Identity {
    match (spec.uuid, device) {
        (Some(uuid), _) => Identity { uuid },
        (None, Some(device)) => mark::identity_of_device(device, canonical),
        (None, None) => mark::identity_of_file(file, canonical),
    }
}

/// Tried where nothing is changed by it: beyond the end of a file.
fn abilities(file: &File, is_device: bool, is_read_only: bool) -> Abilities {
    if is_device {
        return Abilities::device();
    }
    let abilities = Abilities::file();
    let end = file.metadata().map_or(0, |metadata| metadata.len()).next_multiple_of(4096);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let refused =
        !is_read_only && matches!(fallocate(file, punch, end, 4096), Err(Errno::OPNOTSUPP | Errno::NOSYS));
    if refused {
        abilities.strike(isolane_reactor::file::Kind::PunchHole);
    }
    abilities
}

fn geometry(spec: &VolumeSpec, blocks: u64, is_device: bool, abilities: &Abilities) -> Geometry {
    let punches = !spec.read_only && abilities.has(isolane_reactor::file::Kind::PunchHole);
    Geometry {
        block_size: spec.block_size,
        blocks,
        read_only: spec.read_only,
        volatile_cache: !spec.read_only && !spec.write_through,
        deallocate: punches,
        // A device may take a discard as a hint.
        zeroes_after_deallocate: punches && !is_device,
    }
}

/// An error of the system, with what to do about it.
fn explain(name: &str, error: &io::Error, is_read_only: bool) -> OpenError {
    let remedy = match error.kind() {
        // EPERM, and not EACCES: no user may do it.
        _ if Errno::from_io_error(error) == Some(Errno::PERM) => {
            "the system forbids it to every user, root too: give the device to the container (docker run --device), \
             or remove the file's immutable flag (chattr -i)"
        }
        io::ErrorKind::NotFound => "check the path, or add size=10G to create a sparse file of that size",
        io::ErrorKind::PermissionDenied if is_read_only => "run as a user who may read it",
        io::ErrorKind::PermissionDenied => "run as a user who may write it, or add ro",
        io::ErrorKind::ReadOnlyFilesystem => "add ro to serve it read-only",
        _ => "check the path and the file system",
    };
    let reason = match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => error.to_string(),
    };
    OpenError::new(name, reason, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_container_where_root_is_refused_and_the_user_where_others_are() {
        let said = |errno: Errno| explain("/dev/sda", &errno.into(), false).to_string();
        assert!(said(Errno::PERM).contains("docker run --device"), "{}", said(Errno::PERM));
        assert!(said(Errno::ACCESS).ends_with("run as a user who may write it, or add ro"));
    }
}
