//! Checks of block devices and file systems.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags};

use super::check::{Check, Severity};
use super::context::{Context, unexpected};
use super::survey::{Survey, quoted};
use crate::system::{DiskStats, ReadError, Reason, SMALL, decode_number, decode_process_io};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "blk.scheduler",
        severity: Severity::Warning,
        reads: "/sys/block/*/queue: scheduler, nomerges",
        good: "none on NVMe drives",
        reason: "a scheduler takes a lock for each request, and the drive has its own order",
        is_sampled: false,
        run: scheduler,
    },
    Check {
        id: "blk.wbt",
        severity: Severity::Information,
        reads: "/sys/block/*/queue/wbt_lat_usec",
        good: "0 beneath a target",
        reason: "the throttle of writes delays them while reads are slow",
        is_sampled: false,
        run: wbt,
    },
    Check {
        id: "blk.cache",
        severity: Severity::Information,
        reads: "/sys/block/*/queue: write_cache, fua",
        good: "write through, or FUA",
        reason: "with a volatile cache and without FUA, each durable write is a flush of the whole cache",
        is_sampled: false,
        run: cache,
    },
    Check {
        id: "blk.split",
        severity: Severity::Information,
        reads: "/sys/block/*/queue: max_sectors_kb, rq_affinity, iostats",
        good: "at least 128; 2; 1",
        reason: "small limits split requests; completions belong to the core of the request; tools read the statistics",
        is_sampled: false,
        run: split,
    },
    Check {
        id: "blk.others",
        severity: Severity::Warning,
        reads: "/proc/diskstats, /proc/*/io, twice, with a running target",
        good: "less than 10 % of the bytes of the disks beneath the volumes are I/O of other processes",
        reason: "I/O of others delays the I/O of the volumes",
        is_sampled: true,
        run: others,
    },
    Check {
        id: "blk.space",
        severity: Severity::Error,
        reads: "statvfs and allocated blocks of the files of volumes",
        good: "10 % free, or the full size allocated",
        reason: "writes to a sparse file fail when the file system is full",
        is_sampled: false,
        run: space,
    },
    Check {
        id: "blk.system",
        severity: Severity::Warning,
        reads: "statfs and statx of the files of volumes",
        good: "direct I/O; not on overlay, NFS, or a file system with copy on write",
        reason: "other file systems copy data, or move each written block",
        is_sampled: false,
        run: system,
    },
    Check {
        id: "blk.resync",
        severity: Severity::Warning,
        reads: "/sys/block/md*/md: sync_action, degraded",
        good: "idle, and no missing disk",
        reason: "a copy uses the disks, and a degraded RAID reads all others for a missing disk",
        is_sampled: false,
        run: resync,
    },
];

/// Calls a function for the directory of the queue of each drive.
fn for_each_queue(
    context: &Context,
    survey: &mut Survey,
    mut check: impl FnMut(&mut Survey, &str, &str) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    for drive in context.drives()? {
        if let Err(error) = check(survey, &drive.name, &format!("{}/queue", drive.path)) {
            survey.unseen(error);
        }
    }
    if survey.is_empty() {
        survey.absent("no drive");
    }
    Ok(())
}

/// Returns the command that writes a value.
fn echo(value: &str, path: &str) -> String {
    format!("echo {value} > {}", quoted(path))
}

fn scheduler(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for_each_queue(context, survey, |survey, name, queue| {
        let path = format!("{queue}/scheduler");
        // Devices without schedulers have no brackets.
        let is_none = context.root.word(&path)? == "none";
        let chosen = if is_none { "none".to_owned() } else { context.chosen(&path)? };
        let is_good = chosen == "none" || !name.starts_with("nvme");
        survey.judge(is_good, format!("{name}: {chosen}"), echo("none", &path));
        Ok(())
    })
}

fn wbt(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for_each_queue(context, survey, |survey, name, queue| {
        let path = format!("{queue}/wbt_lat_usec");
        let value = context.root.parse(&path, SMALL, decode_number)?;
        survey.judge(value == 0, format!("{name}: {value} µs"), echo("0", &path));
        Ok(())
    })
}

fn cache(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for_each_queue(context, survey, |survey, name, queue| {
        let path = format!("{queue}/write_cache");
        let cache = context.root.word(&path)?;
        if !["write back", "write through"].contains(&&*cache) {
            return Err(unexpected(&path, "write back or write through"));
        }
        let fua = context.root.parse(&format!("{queue}/fua"), SMALL, decode_number)? != 0;
        survey.judge(
            cache == "write through" || fua,
            format!("{name}: {cache}, {} FUA", if fua { "with" } else { "without" }),
            "# use drives with power-loss protection",
        );
        Ok(())
    })
}

fn split(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for_each_queue(context, survey, |survey, name, queue| {
        for (file, good) in [("max_sectors_kb", 128), ("rq_affinity", 2), ("iostats", 1)] {
            let path = format!("{queue}/{file}");
            let value = context.root.parse(&path, SMALL, decode_number)?;
            survey.judge(value >= good, format!("{name}: {file} {value}"), echo(&good.to_string(), &path));
        }
        Ok(())
    })
}

fn others(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let Some(target) = context.pid()? else {
        survey.absent("no target given");
        return Ok(());
    };
    let drives: Vec<&str> = context.drives()?.iter().map(|drive| &*drive.name).collect();
    let disks = DiskStats::read(&context.root)?;
    let disks = disks.iter().filter(|disk| drives.contains(&&*disk.name));
    let bytes =
        disks.fold(0_u64, |sum, disk| sum.saturating_add(disk.read_bytes).saturating_add(disk.written_bytes));
    let (total, ours) = (context.rise("disks", bytes), process_bytes(context, target)?);
    let foreign = total.saturating_sub(ours);
    let mut neighbors = Vec::new();
    for pid in context.root.list("/proc")?.iter().filter_map(|name| name.parse::<u32>().ok()) {
        // Only root can read the I/O of other users.
        let bytes = if pid == target { 0 } else { process_bytes(context, pid).unwrap_or_default() };
        neighbors.push((bytes, pid));
    }
    let neighbor = neighbors.into_iter().max().filter(|(bytes, _)| *bytes > 0);
    let name = neighbor.map(|(_, pid)| {
        let name = context.root.word(&format!("/proc/{pid}/comm")).unwrap_or_default();
        format!(", most by {name} (PID {pid})")
    });
    survey.judge(
        // Less than 1 MiB is a log or a journal.
        foreign < 1 << 20 || foreign < total / 10,
        format!(
            "{foreign} of {total} bytes are not of the target{} {}",
            name.unwrap_or_default(),
            context.period()
        ),
        "# move the volume or the other process to another disk",
    );
    Ok(())
}

fn process_bytes(context: &Context, pid: u32) -> Result<u64, ReadError> {
    let io = context.root.parse(&format!("/proc/{pid}/io"), SMALL, decode_process_io)?;
    Ok(context.rise(&format!("io {pid}"), io.read_bytes.saturating_add(io.write_bytes)))
}

/// Calls a function for each file of a volume.
fn for_each_volume(
    context: &Context,
    survey: &mut Survey,
    check: impl Fn(&mut Survey, &Path) -> Result<(), rustix::io::Errno>,
) -> Result<(), ReadError> {
    for volume in &context.volumes()? {
        let path = volume.display().to_string();
        if !context.root.is_system() {
            survey.unseen(format!("{path}: volumes are not below this root"));
        } else if let Err(error) = check(survey, volume) {
            survey.unseen(ReadError { path, reason: Reason::from(error) });
        }
    }
    if survey.is_empty() {
        survey.absent("no target with a file given");
    }
    Ok(())
}

fn space(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for_each_volume(context, survey, |survey, path| {
        let (file, system) = (rustix::fs::stat(path)?, rustix::fs::statvfs(path)?);
        let allocated = u64::try_from(file.st_blocks).unwrap_or_default().saturating_mul(512);
        let size = u64::try_from(file.st_size).unwrap_or_default();
        let free = 100.0 * system.f_bavail as f64 / system.f_blocks.max(1) as f64;
        let shown = path.display().to_string();
        survey.judge(
            has_space(size, allocated, free),
            format!("{shown}: {allocated} of {size} bytes allocated, {free:.0} % of the file system free"),
            format!("fallocate -l {size} {}", quoted(&shown)),
        );
        Ok(())
    })
}

pub(super) fn has_space(size: u64, allocated: u64, free_percent: f64) -> bool {
    allocated >= size || free_percent >= 10.0
}

fn system(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for_each_volume(context, survey, |survey, path| {
        let kind = rustix::fs::statfs(path)?.f_type;
        // Since Linux 6.1.
        const DIOALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);
        let file = rustix::fs::statx(CWD, path, AtFlags::empty(), DIOALIGN)?;
        let shown = path.display();
        let remedy = "# serve a file on XFS, or a block device";
        match slow_system(kind as u64) {
            Some(name) => survey.bad(format!("{shown}: on {name}"), remedy),
            None if file.stx_mask & DIOALIGN.bits() == 0 => {
                survey.unseen(format!("{shown}: the kernel does not report alignments of direct I/O"));
            }
            None => survey.judge(file.stx_dio_mem_align != 0, format!("{shown}: direct I/O"), remedy),
        }
        Ok(())
    })
}

/// Returns the name of a file system that is slow beneath a target.
pub(super) fn slow_system(magic: u64) -> Option<&'static str> {
    const SLOW: [(u64, &str); 5] = [
        (0x794c_7630, "overlay"),
        (0x6969, "NFS"),
        (0x9123_683e, "btrfs"),
        (0x6573_5546, "FUSE"),
        (0x2fc1_2fc1, "ZFS"),
    ];
    SLOW.iter().find(|(number, _)| *number == magic & 0xffff_ffff).map(|(_, name)| *name)
}

fn resync(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for name in context.root.list("/sys/block")?.iter().filter(|name| name.starts_with("md")) {
        let dir = format!("/sys/block/{name}/md");
        if let Some(action) = survey.take(context.root.word(&format!("{dir}/sync_action"))) {
            survey.judge(
                action == "idle",
                format!("{name}: {action}"),
                "# wait for the end, see /proc/mdstat",
            );
        }
        if let Some(missing) =
            survey.take(context.root.parse(&format!("{dir}/degraded"), SMALL, decode_number))
        {
            survey.judge(missing == 0, format!("{name}: {missing} disks missing"), "# replace the disk");
        }
    }
    if survey.is_empty() {
        survey.absent("no RAID of the kernel");
    }
    Ok(())
}
