//! Who holds a file or a device, as far as `/proc` and `/sys` tell: for error messages, and to tell a lock
//! that its holder still wants from one that the kernel has yet to let go of.

use std::fs;
use std::path::Path;

/// Whether a process that can be seen has a lock on the file at `path`.
pub(crate) fn is_locked(path: &Path) -> bool {
    open_files(path).any(|holder| holder.has_lock)
}

/// Whether a mount, a stacked device or a process that can be seen has the device at `path`.
pub(crate) fn is_claimed(path: &Path, device: (u32, u32)) -> bool {
    mounts(device).next().is_some() || stacked(device).next().is_some() || open_files(path).next().is_some()
}

/// Who has a lock on the file at `path`.
pub(crate) fn describe_lock(path: &Path) -> String {
    let holders = open_files(path).filter(|holder| holder.has_lock).map(|holder| holder.process);
    join(holders, "another program (which one is not visible from here)")
}

/// Who holds the device at `path`.
pub(crate) fn describe_device(path: &Path, device: (u32, u32)) -> String {
    let mounts = mounts(device).map(|place| format!("the mount at {place}"));
    let stacked = stacked(device);
    let processes = open_files(path).map(|holder| holder.process);
    join(mounts.chain(stacked).chain(processes), "the kernel or another program (swap, RAID, another target)")
}

struct Holder {
    process: String,
    has_lock: bool,
}

/// Open files of all processes that can be seen.
fn open_files(path: &Path) -> impl Iterator<Item = Holder> {
    let canonical = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    processes().flat_map(move |pid| {
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let canonical = canonical.clone();
        fds.filter(move |fd| fs::read_link(fd.path()).is_ok_and(|target| target == canonical)).map(
            move |fd| Holder {
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

/// Devices that stand on a device.
fn stacked(device: (u32, u32)) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(format!("/sys/dev/block/{}:{}/holders", device.0, device.1));
    entries.into_iter().flatten().flatten().map(|entry| format!("the device {}", entry.file_name().display()))
}

/// Where a device is mounted.
fn mounts(device: (u32, u32)) -> impl Iterator<Item = String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let number = format!("{}:{}", device.0, device.1);
    let place = move |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(2);
        (fields.next()? == number).then(|| fields.nth(1).map(str::to_owned))?
    };
    table.lines().filter_map(place).collect::<Vec<_>>().into_iter()
}

fn join(holders: impl Iterator<Item = String>, nobody: &str) -> String {
    let mut holders: Vec<_> = holders.collect();
    holders.sort();
    holders.dedup();
    if holders.is_empty() { nobody.to_owned() } else { holders.join(", ") }
}
