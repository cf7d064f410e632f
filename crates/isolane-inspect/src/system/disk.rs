//! I/O of disks and processes: `/proc/diskstats` and `/proc/PID/io`.

use super::fields::Fields;
use super::read_error::{Malformed, ReadError};
use super::root::Root;

/// Limit in bytes: 10,000 disks with 200 bytes each.
const MAX_BYTES: usize = 2 << 20;

/// Work of a disk or partition since the start of the system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Number of the device: major, minor.
    pub device: (u32, u32),
    /// Name of the device, for example `nvme0n1`.
    pub name: String,
    /// Completed reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Sum of the times of all reads, in milliseconds.
    pub read_ms: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Sum of the times of all writes, in milliseconds.
    pub write_ms: u64,
    /// Operations in flight.
    pub in_flight: u64,
    /// Time with operations in flight, in milliseconds.
    pub busy_ms: u64,
}

impl DiskStats {
    /// Reads the work of all disks and partitions.
    ///
    /// # Errors
    /// The file and the reason.
    pub fn read(root: &Root) -> Result<Vec<DiskStats>, ReadError> {
        root.parse("/proc/diskstats", MAX_BYTES, decode_diskstats)
    }
}

/// Decodes `/proc/diskstats`.
///
/// # Errors
/// The first line that lacks a number.
pub fn decode_diskstats(text: &str) -> Result<Vec<DiskStats>, Malformed> {
    text.lines().enumerate().map(|(index, line)| parse_disk(index, line)).collect()
}

fn parse_disk(index: usize, line: &str) -> Result<DiskStats, Malformed> {
    const SECTOR_BYTES: u64 = 512;
    let mut fields = Fields::new(index, line);
    let device = (fields.number("a major number")?, fields.number("a minor number")?);
    let name = fields.word("a name")?.to_owned();
    let mut numbers = [0_u64; 10];
    for number in &mut numbers {
        *number = fields.number("ten counters")?;
    }
    let [reads, _, read_sectors, read_ms, writes, _, written_sectors, write_ms, in_flight, busy_ms] = numbers;
    let (read_bytes, written_bytes) =
        (read_sectors.saturating_mul(SECTOR_BYTES), written_sectors.saturating_mul(SECTOR_BYTES));
    Ok(DiskStats {
        device,
        name,
        reads,
        read_bytes,
        read_ms,
        writes,
        written_bytes,
        write_ms,
        in_flight,
        busy_ms,
    })
}

/// I/O of a process on disks, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessIo {
    /// Bytes read from disks.
    pub read_bytes: u64,
    /// Bytes written to disks.
    pub write_bytes: u64,
}

/// Decodes `/proc/PID/io`.
///
/// # Errors
/// A field is missing.
pub fn decode_process_io(text: &str) -> Result<ProcessIo, Malformed> {
    let field = |name: &str| {
        let value = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
        text.lines().find_map(value).ok_or(Malformed::at(text.lines().count(), "read_bytes and write_bytes"))
    };
    Ok(ProcessIo { read_bytes: field("read_bytes:")?, write_bytes: field("write_bytes:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_work_of_disks() {
        let text = "   7       0 loop0 321 0 8 219 143 0 2 152 1 276 451 0 0 0 0 48 79\n 259 1 nvme0n1 1 2 3 4 5 6 7 8 9 10 11\n";
        let disks = decode_diskstats(text).unwrap();
        let expected = DiskStats {
            device: (7, 0),
            name: "loop0".into(),
            reads: 321,
            read_bytes: 4096,
            read_ms: 219,
            writes: 143,
            written_bytes: 1024,
            write_ms: 152,
            in_flight: 1,
            busy_ms: 276,
        };
        assert_eq!(disks[0], expected);
        assert_eq!((disks[1].device, disks[1].busy_ms), ((259, 1), 10));
        assert_eq!(decode_diskstats("").unwrap(), []);
        for text in ["7 0 loop0 1 2\n", "x 0 loop0 1 2 3 4 5 6 7 8 9 10\n", "\n"] {
            assert!(decode_diskstats(text).is_err(), "{text}");
        }
    }

    #[test]
    fn decodes_io_of_a_process() {
        let text = "rchar: 6976\nread_bytes: 4096\nwrite_bytes: 512\ncancelled_write_bytes: 9\n";
        assert_eq!(decode_process_io(text), Ok(ProcessIo { read_bytes: 4096, write_bytes: 512 }));
        assert!(decode_process_io("read_bytes: 4096\n").is_err());
        assert!(decode_process_io("read_bytes: 1\nwrite_bytes: x\n").is_err());
    }
}
