//! Owners of a file or device, from `/proc` and `/sys`: for error messages, and to distinguish an
//! active lock from one that the kernel has not released yet.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Whether a visible process has a lock on the file at `path`.
pub(crate) fn is_locked(path: &Path) -> bool {
    open_files(path).any(|owner| owner.has_lock)
}

/// Whether a mount, a stacked device, or a visible process uses the device at `path`.
pub(crate) fn is_claimed(path: &Path, device: (u32, u32)) -> bool {
    mounts(device).next().is_some()
        || stacked_devices(device).next().is_some()
        || open_files(path).next().is_some()
}

/// Returns the name by which this process has locked the file at `path`, perhaps another one than `path`.
pub(crate) fn name_of_own_lock(path: &Path) -> Option<PathBuf> {
    open_files(path).find(|owner| owner.is_this_process && owner.has_lock).map(|owner| owner.path)
}

/// Returns the name by which this process has the device at `path` open.
pub(crate) fn name_of_own_device(path: &Path) -> Option<PathBuf> {
    open_files(path).find(|owner| owner.is_this_process).map(|owner| owner.path)
}

/// Describes the lock owners of the file at `path`.
pub(crate) fn describe_lock(path: &Path) -> String {
    let owners = open_files(path).filter(|owner| owner.has_lock).map(|owner| owner.process);
    join(owners, "another program (not visible to this process)")
}

/// Describes the users of the device at `path`.
pub(crate) fn describe_device(path: &Path, device: (u32, u32)) -> String {
    let mounts = mounts(device).map(|path| format!("the mount at {path}"));
    let stacked_devices = stacked_devices(device);
    let processes = open_files(path).map(|owner| owner.process);
    join(
        mounts.chain(stacked_devices).chain(processes),
        "the kernel or another program (swap, RAID, another target)",
    )
}

struct LockOwner {
    process: String,
    is_this_process: bool,
    /// Name by which the process has opened the file.
    path: PathBuf,
    has_lock: bool,
}

/// Returns the visible processes that have the file open, also by another name if they have locked it.
fn open_files(path: &Path) -> impl Iterator<Item = LockOwner> {
    let canonical = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let inode = fs::metadata(path).ok().map(|metadata| inode(&metadata));
    processes().flat_map(move |pid| {
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let (canonical, inode) = (canonical.clone(), inode.clone());
        fds.filter_map(move |fd| {
            let path = fs::read_link(fd.path()).ok()?;
            let lock = lock(pid, &fd.file_name().display().to_string());
            let has_name = path == canonical;
            let is_it =
                has_name || (lock.is_some() && lock.as_deref().and_then(locked_inode) == inode.as_deref());
            is_it.then(|| LockOwner {
                process: describe_process(pid),
                is_this_process: pid == std::process::id(),
                path,
                has_lock: lock.is_some(),
            })
        })
    })
}

/// Returns device and inode number as in `/proc/PID/fdinfo`.
fn inode(metadata: &fs::Metadata) -> String {
    let device = metadata.dev();
    format!("{:02x}:{:02x}:{}", rustix::fs::major(device), rustix::fs::minor(device), metadata.ino())
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the line of a lock that was taken through a descriptor.
fn lock(pid: u32, fd: &str) -> Option<String> {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
    info.lines().find(|line| line.starts_with("lock:")).map(str::to_owned)
}

/// Returns device and inode number of `lock: 1: OFDLCK ADVISORY WRITE -1 08:02:1311 0 EOF`.
fn locked_inode(line: &str) -> Option<&str> {
    line.split_ascii_whitespace().find(|field| field.matches(':').count() == 2)
}

fn describe_process(pid: u32) -> String {
    if pid == std::process::id() {
        return "this process itself".to_owned();
    }
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{} (process {pid})", name.trim())
}

/// Returns the devices stacked on a device.
fn stacked_devices(device: (u32, u32)) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(format!("/sys/dev/block/{}:{}/holders", device.0, device.1));
    entries.into_iter().flatten().flatten().map(|entry| format!("the device {}", entry.file_name().display()))
}

/// Returns the mount points of a device.
fn mounts(device: (u32, u32)) -> impl Iterator<Item = String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let number = format!("{}:{}", device.0, device.1);
    let mount_point = move |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(2);
        (fields.next()? == number).then(|| fields.nth(1).map(str::to_owned))?
    };
    table.lines().filter_map(mount_point).collect::<Vec<_>>().into_iter()
}

fn join(owners: impl Iterator<Item = String>, default: &str) -> String {
    let mut owners: Vec<_> = owners.collect();
    owners.sort();
    owners.dedup();
    if owners.is_empty() { default.to_owned() } else { owners.join(", ") }
}
