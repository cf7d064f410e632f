//! Owners of a file or device, from `/proc` and `/sys`: for error messages, and to distinguish an
//! active lock from one that the kernel has not released yet.

use std::fs;
use std::path::Path;

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
    has_lock: bool,
}

/// Returns the visible processes that have the file open.
fn open_files(path: &Path) -> impl Iterator<Item = LockOwner> {
    let canonical = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    processes().flat_map(move |pid| {
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let canonical = canonical.clone();
        fds.filter(move |fd| fs::read_link(fd.path()).is_ok_and(|target| target == canonical)).map(
            move |fd| LockOwner {
                process: describe_process(pid),
                has_lock: has_lock(pid, &fd.file_name().display().to_string()),
            },
        )
    })
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn has_lock(pid: u32, fd: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).is_ok_and(|info| info.contains("\nlock:"))
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
