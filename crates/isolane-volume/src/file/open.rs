//! Opening a file or device: create if requested, open, lock, measure, and identify.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use isolane_reactor::file::can_hang;
use rustix::fs::{FallocateFlags, OFlags, fallocate, ioctl_blkpbszget, ioctl_blksszget, major, minor};
use rustix::io::Errno;

use super::{
    Features, FileStateMachine, FileVolume, SYSFS_DEVICES, create, direct, identity_xattr, lock, lock_owner,
};
use crate::file_watch::Watch;
use crate::inherited_files as inherited;
use crate::spec::{VolumeSpec, format_size};
use crate::{Generation, Identity, OpenError, RestartLoss, VolumeDescription, VolumeInfo};

impl FileVolume {
    /// Opens the file or device at `path`; creates a sparse file of `size` bytes if none exists.
    pub fn open(spec: &VolumeSpec, path: &Path, size: Option<u64>) -> Result<FileVolume, OpenError> {
        let name = spec.name();
        create_if_missing(&name, path, size, spec.read_only)?;
        let canonical =
            fs::canonicalize(path).map_err(|error| to_open_error(&name, &error, spec.read_only))?;
        let device = device_number(&name, &canonical)?;
        let file = match device {
            None => open_file(&name, &canonical, spec)?,
            Some(device) => open_device(&name, &canonical, device, spec)?,
        };
        let blocks = block_count(&name, &file, spec, size)?;
        warn_if_not_atomic(&name, &file, spec.block_size, device);
        let identity = identity(&file, &canonical, device, spec);
        let direct = !spec.buffered && direct::try_enable_direct(&file, spec.block_size);
        let how = if direct { "direct I/O" } else { "page cache" };
        log::info!("{name}: {}, {how}", format_size(blocks * u64::from(spec.block_size)));

        let features = features(&file, device.is_some(), spec.read_only);
        let info = info(spec, blocks, device.is_some(), &features);
        let loses = if info.volatile_cache { RestartLoss::Cache } else { RestartLoss::Nothing };
        let generation = Generation::of_boot(loses);
        if generation.is_none() {
            log::info!("{name}: no boot ID, hosts cannot distinguish a restart from a network failure");
        }
        let can_hang = device.is_none() && can_hang(&file);
        let description = VolumeDescription { name: name.clone(), info, identity, generation };
        let watch = if device.is_none() { Watch::start(&name, &canonical, &file, can_hang) } else { None };
        let machine = FileStateMachine::new(description, features, direct);
        Ok(FileVolume {
            machine,
            file: Arc::new(file),
            is_device: device.is_some(),
            device_size: device.map(|(major, minor)| format!("{SYSFS_DEVICES}/{major}:{minor}/size").into()),
            can_hang,
            unchecked: Default::default(),
            watch,
            path: canonical,
            group: spec.group.clone(),
        })
    }
}

fn create_if_missing(name: &str, path: &Path, size: Option<u64>, read_only: bool) -> Result<(), OpenError> {
    if fs::exists(path).map_err(|error| to_open_error(name, &error, read_only))? {
        return Ok(());
    }
    if is_among_devices(path) {
        let error = OpenError::new(name, "no such device", "check its name with lsblk");
        return Err(error.with_os_error(Some(Errno::NOENT.raw_os_error())));
    }
    let Some(size) = size else { return Ok(()) };
    if read_only {
        let reason = "no such file, and a new one would be empty";
        let error = OpenError::new(name, reason, "omit ro, or use a file with data");
        return Err(error.with_os_error(Some(Errno::NOENT.raw_os_error())));
    }
    create::create_sparse(path, size).map_err(|error| {
        let reason = format!("cannot create it with {} ({error})", format_size(size));
        OpenError::new(
            name,
            reason,
            "check the directory, its permissions, and the maximum file size of its file system",
        )
        .with_os_error(error.raw_os_error())
    })
}

/// Whether `path` is in a device directory, where a regular file would be a mistake; `/dev/shm` is
/// for files.
fn is_among_devices(path: &Path) -> bool {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// Returns the number of a block device, `None` for a regular file, and an error otherwise.
fn device_number(name: &str, path: &Path) -> Result<Option<(u32, u32)>, OpenError> {
    let metadata = fs::metadata(path).map_err(|error| to_open_error(name, &error, false))?;
    let kind = metadata.file_type();
    if kind.is_block_device() {
        return Ok(Some((major(metadata.rdev()), minor(metadata.rdev()))));
    }
    if kind.is_file() {
        return Ok(None);
    }
    let reason = if kind.is_dir() { "is a directory" } else { "not a regular file or block device" };
    Err(OpenError::invalid(name, reason, "use the path of a file (with size=10G to create one) or a device"))
}

fn open_file(name: &str, path: &Path, spec: &VolumeSpec) -> Result<File, OpenError> {
    if let Some(file) = inherited::take(path, spec.read_only) {
        return Ok(file);
    }
    let opened = OpenOptions::new().read(true).write(!spec.read_only).open(path);
    let file = opened.map_err(|error| to_open_error(name, &error, spec.read_only))?;
    lock::lock(name, path, &file, !spec.read_only)?;
    Ok(file)
}

fn open_device(name: &str, path: &Path, device: (u32, u32), spec: &VolumeSpec) -> Result<File, OpenError> {
    let exclusive = OFlags::EXCL.bits() as i32;
    let open = || OpenOptions::new().read(true).write(!spec.read_only).custom_flags(exclusive).open(path);
    let is_orphaned = |opened: &io::Result<File>| {
        opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
            && !lock_owner::is_claimed(path, device)
    };
    let opened = match inherited::take(path, spec.read_only) {
        Some(file) => Ok(file),
        None => lock::retry_while_orphaned(name, open, is_orphaned),
    };
    let file = opened.map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => lock::device_busy_error(name, path, device),
        _ => to_open_error(name, &error, spec.read_only),
    })?;
    let logical = ioctl_blksszget(&file).unwrap_or(512);
    if logical > spec.block_size {
        let reason =
            format!("the device has logical blocks of {logical} bytes, larger than {}", spec.block_size);
        return Err(OpenError::invalid(name, reason, format!("add block-size={logical}")));
    }
    Ok(file)
}

/// Returns the number of whole blocks.
fn block_count(name: &str, file: &File, spec: &VolumeSpec, size: Option<u64>) -> Result<u64, OpenError> {
    // Works for files and devices.
    let mut handle = file;
    let bytes = handle.seek(SeekFrom::End(0)).map_err(|error| to_open_error(name, &error, spec.read_only))?;
    let block_size = u64::from(spec.block_size);
    let served = size.map_or(bytes, |size| size.min(bytes));
    if served < block_size {
        let reason = match bytes {
            0 => "file is empty".to_owned(),
            _ => format!("{served} bytes is less than one block of {block_size}"),
        };
        let wanted = size.map_or_else(|| "10G".to_owned(), format_size);
        let remedy = format!("set its size with `truncate -s {wanted} {name}`");
        return Err(OpenError::invalid(name, reason, remedy));
    }
    if let Some(size) = size.filter(|size| *size > bytes) {
        let reason = format!("the existing file has {}, not {}", format_size(bytes), format_size(size));
        return Err(OpenError::invalid(name, reason, "omit size= to keep its size, or use another path"));
    }
    if served < bytes {
        let (bytes, served) = (format_size(bytes), format_size(served));
        log::warn!("{name}: the file has {bytes}; only the first {served} are served");
    }
    if !served.is_multiple_of(block_size) {
        log::warn!("{name}: the last {} bytes are not a whole block and are not served", served % block_size);
    }
    Ok(served / block_size)
}

/// Warns if a power cut can tear a block: one block is always reported as atomic (AWUPF is 0's
/// based), but a disk with 512-byte sectors may tear a block of 4 KiB.
fn warn_if_not_atomic(name: &str, file: &File, block_size: u32, device: Option<(u32, u32)>) {
    let physical = match device {
        Some(_) => ioctl_blkpbszget(file).ok(),
        None => file.metadata().ok().and_then(|metadata| physical_block_size(metadata.dev())),
    };
    if physical.is_none_or(|physical| physical < block_size) && block_size > 512 {
        let known =
            physical.map_or_else(|| "of unknown size".to_owned(), |physical| format!("of {physical} bytes"));
        log::warn!(
            "{name}: physical blocks {known}, so a power cut may tear a block of {block_size}; \
             use block-size=512 if users rely on atomic blocks"
        );
    }
}

/// Returns the physical block size of a file system's device, if any.
fn physical_block_size(device: u64) -> Option<u32> {
    let directory = format!("{SYSFS_DEVICES}/{}:{}", major(device), minor(device));
    let read = |file: &str| fs::read_to_string(format!("{directory}/{file}")).ok();
    let text = read("queue/physical_block_size").or_else(|| read("../queue/physical_block_size"))?;
    text.trim().parse().ok()
}

fn identity(file: &File, canonical: &Path, device: Option<(u32, u32)>, spec: &VolumeSpec) -> Identity {
    match (spec.uuid, device) {
        (Some(uuid), _) => Identity { uuid },
        (None, Some(device)) => identity_xattr::identity_of_device(device, canonical),
        (None, None) => identity_xattr::identity_of_file(file, canonical),
    }
}

/// Probes beyond the end of a file, where nothing changes.
fn features(file: &File, is_device: bool, read_only: bool) -> Features {
    if is_device {
        return Features::device();
    }
    let features = Features::file();
    let end = file.metadata().map_or(0, |metadata| metadata.len()).next_multiple_of(4096);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let refused =
        !read_only && matches!(fallocate(file, punch, end, 4096), Err(Errno::OPNOTSUPP | Errno::NOSYS));
    if refused {
        features.disable(isolane_reactor::file::FileOpKind::PunchHole);
    }
    features
}

fn info(spec: &VolumeSpec, blocks: u64, is_device: bool, features: &Features) -> VolumeInfo {
    let punches = !spec.read_only && features.has(isolane_reactor::file::FileOpKind::PunchHole);
    VolumeInfo {
        block_size: spec.block_size,
        blocks,
        read_only: spec.read_only,
        volatile_cache: !spec.read_only && !spec.write_through,
        deallocate: punches,
        // A device may treat a discard as a hint.
        zeroes_after_deallocate: punches && !is_device,
    }
}

/// Converts a system error and adds the remedy.
fn to_open_error(name: &str, error: &io::Error, read_only: bool) -> OpenError {
    let remedy = match error.kind() {
        // EPERM, unlike EACCES, applies to every user.
        _ if Errno::from_io_error(error) == Some(Errno::PERM) => {
            "the system denies access to every user including root: pass the device to the container \
             (docker run --device), or remove the file's immutable flag (chattr -i)"
        }
        io::ErrorKind::NotFound => "check the path, or add size=10G to create a sparse file of that size",
        io::ErrorKind::PermissionDenied if read_only => "run as a user with read permission",
        io::ErrorKind::PermissionDenied => "run as a user with write permission, or add ro",
        io::ErrorKind::ReadOnlyFilesystem => "add ro to serve it read-only",
        _ => "check the path and the file system",
    };
    let reason = match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        _ => error.to_string(),
    };
    OpenError::new(name, reason, remedy).with_os_error(error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_errors_name_container_or_user() {
        let message = |errno: Errno| to_open_error("/dev/sda", &errno.into(), false).to_string();
        assert!(message(Errno::PERM).contains("docker run --device"), "{}", message(Errno::PERM));
        assert!(message(Errno::ACCESS).ends_with("run as a user with write permission, or add ro"));
    }
}
