//! Memory that can still be allocated. Registering memory allocates it, and the kernel kills a program that exceeds it.

use std::ffi::c_void;
use std::fs;
use std::path::Path;

use crate::ffi::{Errno, Result};

/// Checks that the pages of a range that are not in memory can be allocated. The range consists of pages.
///
/// # Errors
/// `ENOMEM`, or `EFAULT` if the range is not mapped.
pub(crate) fn check(start: *mut c_void, len: usize) -> Result<()> {
    if len < CHECKED_BYTES {
        return Ok(());
    }
    let available = available_bytes();
    let (page, mut missing, mut residency) = (rustix::param::page_size(), 0, vec![0_u8; CHUNK_PAGES]);
    for offset in (0..len).step_by(CHUNK_PAGES * page) {
        let chunk = (len - offset).min(CHUNK_PAGES * page);
        let pages = &mut residency[..chunk / page];
        // SAFETY: `mincore` accesses only the vector, which has an entry for each page.
        if unsafe { libc::mincore(start.wrapping_byte_add(offset), chunk, pages.as_mut_ptr()) } != 0 {
            return Err(Errno(libc::EFAULT));
        }
        missing += page as u64 * pages.iter().filter(|page| **page & 1 == 0).count() as u64;
        if missing > available {
            return Err(Errno::NO_MEMORY);
        }
    }
    Ok(())
}

/// Returns the number of bytes that are free or can be reclaimed, with free huge pages, within the limits of the control
/// group. What the system does not report is no limit.
fn available_bytes() -> u64 {
    let group = read("/proc/self/cgroup");
    let group = group.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let groups = Path::new(CONTROL_GROUPS).join(group);
    let groups = groups.ancestors().take_while(|path| path.starts_with(CONTROL_GROUPS));
    let limits = groups.filter_map(|path| {
        let file = |name: &str| read(path.join(name));
        group_bytes(&file("memory.max"), &file("memory.current"), &file("memory.stat"))
    });
    limits.chain(machine_bytes(&read("/proc/meminfo"))).min().unwrap_or(u64::MAX)
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the bytes that a machine has available, from the text of `/proc/meminfo`.
fn machine_bytes(meminfo: &str) -> Option<u64> {
    let kib = |name| field(meminfo, name).map(|kib| kib << 10);
    let huge =
        field(meminfo, "HugePages_Free:").zip(kib("Hugepagesize:")).map_or(0, |(pages, size)| pages * size);
    Some(kib("MemAvailable:")? + huge)
}

/// Returns the bytes that a control group has available, from the texts of its files. `None` without a limit.
fn group_bytes(max: &str, current: &str, stat: &str) -> Option<u64> {
    let (max, current) = (max.trim().parse::<u64>().ok()?, current.trim().parse::<u64>().ok()?);
    let cache = ["active_file", "inactive_file"].map(|name| field(stat, name).unwrap_or(0));
    Some(max.saturating_sub(current) + cache.iter().sum::<u64>())
}

/// Returns the number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    lines.find_map(|mut words| words.next().filter(|word| *word == name).and(words.next())?.parse().ok())
}

/// Length in bytes from which memory is checked.
const CHECKED_BYTES: usize = 1 << 20;
/// Number of pages that are checked at a time.
const CHUNK_PAGES: usize = 1 << 16;
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_memory_that_can_be_reclaimed() {
        let meminfo = "MemTotal: 9 kB\nMemAvailable:    5 kB\nHugePages_Free:   2\nHugepagesize:   2048 kB\n";
        assert_eq!(machine_bytes(meminfo), Some((5 << 10) + (4 << 20)));
        assert_eq!((machine_bytes("MemAvailable: 7 kB\n"), machine_bytes("")), (Some(7 << 10), None));
        let stat = "anon 7\nfile 50\ninactive_file 30\nactive_file 5\n";
        assert_eq!(group_bytes("100\n", "90\n", stat), Some(45));
        assert_eq!((group_bytes("100", "120", ""), group_bytes("max\n", "90\n", stat)), (Some(0), None));
    }
}
