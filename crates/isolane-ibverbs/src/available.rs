//! Memory that can still be allocated. Registering memory allocates it, and the kernel kills a program that exceeds it.

use std::ffi::c_void;
use std::fs;
use std::ops::Range;
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
    let (range, available) = (start.addr()..start.addr() + len, available_bytes());
    if is_below(std::slice::from_ref(&range), available)? {
        return Ok(());
    }
    let larger = larger_pages(&read("/proc/self/smaps"), rustix::param::page_size());
    if is_below(&without(range, &larger), available)? { Ok(()) } else { Err(Errno::NO_MEMORY) }
}

/// Whether at most `available` bytes of these ranges are not in memory.
///
/// # Errors
/// `EFAULT` if a range is not mapped.
fn is_below(ranges: &[Range<usize>], available: u64) -> Result<bool> {
    let (page, mut missing, mut residency) = (rustix::param::page_size(), 0, vec![0_u8; CHUNK_PAGES]);
    let size = CHUNK_PAGES * page;
    let chunks = ranges
        .iter()
        .flat_map(|range| range.clone().step_by(size).map(|start| (start, size.min(range.end - start))));
    for (start, len) in chunks {
        let pages = &mut residency[..len / page];
        // SAFETY: `mincore` accesses only the vector, which has an entry for each page.
        if unsafe { libc::mincore(std::ptr::without_provenance_mut(start), len, pages.as_mut_ptr()) } != 0 {
            return Err(Errno(libc::EFAULT));
        }
        missing += page as u64 * pages.iter().filter(|page| **page & 1 == 0).count() as u64;
        if missing > available {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the parts of a range outside of others, which are in order.
fn without(range: Range<usize>, others: &[Range<usize>]) -> Vec<Range<usize>> {
    let (mut parts, mut at) = (Vec::new(), range.start);
    for other in others.iter().filter(|other| other.start < range.end && other.end > range.start) {
        parts.push(at..other.start.max(at));
        at = other.end.min(range.end);
    }
    parts.push(at..range.end);
    parts
}

/// Returns the mappings with pages larger than a size, from the text of `/proc/self/smaps`. The system takes them from its
/// own pool, which no limit of memory includes, and kills no program for them.
fn larger_pages(smaps: &str, size: usize) -> Vec<Range<usize>> {
    let (mut mapping, mut found) = (0..0, Vec::new());
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("KernelPageSize:"), Some(kib)) => {
                let is_larger = kib.parse::<usize>().is_ok_and(|kib| kib << 10 > size);
                found.extend(is_larger.then(|| mapping.clone()));
            }
            (Some(word), _) => {
                let ends = word.split_once('-').map(|(start, end)| (address(start), address(end)));
                if let Some((Some(start), Some(end))) = ends {
                    mapping = start..end;
                }
            }
            _ => {}
        }
    }
    found
}

fn address(hex: &str) -> Option<usize> {
    usize::from_str_radix(hex, 16).ok()
}

/// Returns the number of bytes that are free or can be reclaimed, within the limits of the control group. What the system does not report is no limit.
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
    field(meminfo, "MemAvailable:").map(|kib| kib << 10)
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
        assert_eq!((machine_bytes(meminfo), machine_bytes("")), (Some(5 << 10), None));
        let stat = "anon 7\nfile 50\ninactive_file 30\nactive_file 5\n";
        assert_eq!(group_bytes("100\n", "90\n", stat), Some(45));
        assert_eq!((group_bytes("100", "120", ""), group_bytes("max\n", "90\n", stat)), (Some(0), None));
    }

    #[test]
    fn finds_mappings_with_larger_pages() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nKernelPageSize:        4 kB\nVmFlags: rd\n\
            7f0000200000-7f0000600000 rw-p 00000000 00:0f 77 /anon_hugepage (deleted)\n\
            KernelPageSize:     2048 kB\nVmFlags: rd ht\n8000-9000 r--p 0 0:0 1 a-b\nKernelPageSize: 64 kB\n";
        assert_eq!(larger_pages(smaps, 4096), [0x7f00_0020_0000..0x7f00_0060_0000, 0x8000..0x9000]);
        assert_eq!(larger_pages(&read("/proc/self/smaps"), 1 << 40), []);
    }

    #[test]
    fn removes_ranges() {
        assert_eq!(without(4..20, &[0..2, 2..6, 8..12, 18..30, 40..50]), [4..4, 6..8, 12..18, 20..20]);
        assert_eq!(without(4..20, &[2..6, 6..30]), [4..4, 6..6, 20..20]);
    }

    #[test]
    fn counts_pages_that_are_not_in_memory() {
        let page = rustix::param::page_size();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping that nothing else uses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), HUGE_BYTES, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let two = start.addr()..start.addr() + 2 * page;
        for (pages, is_enough) in [(1, false), (2, true)] {
            assert_eq!(is_below(std::slice::from_ref(&two), pages * page as u64), Ok(is_enough));
        }
        assert_eq!(check(start, HUGE_BYTES), Err(Errno::NO_MEMORY));
        // SAFETY: mapped, and no longer used.
        unsafe { libc::munmap(start, HUGE_BYTES) };
    }

    /// More memory than a machine has.
    const HUGE_BYTES: usize = 1 << 44;
}
