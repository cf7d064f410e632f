//! Checks of block devices and file systems.

use super::check::{Check, Severity};
use super::context::{Context, unexpected};
use super::survey::{Survey, quoted};
use crate::system::{DiskStats, ReadError, SMALL, VolumeFile, decode_number, decode_process_io};

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
    check: impl Fn(&mut Survey, &str, &VolumeFile),
) -> Result<(), ReadError> {
    for path in &context.volumes()? {
        if let Some(file) = survey.take(VolumeFile::read(&context.root, path)) {
            check(survey, path, &file);
        }
    }
    if survey.is_empty() {
        survey.absent("no target with a file given");
    }
    Ok(())
}

fn space(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for_each_volume(context, survey, |survey, path, file| {
        let VolumeFile { size_bytes, allocated_bytes, .. } = *file;
        let free = 100.0 * file.available_blocks as f64 / file.blocks.max(1) as f64;
        survey.judge(
            allocated_bytes >= size_bytes || free >= 10.0,
            format!(
                "{path}: {allocated_bytes} of {size_bytes} bytes allocated, {free:.0} % of the file system free"
            ),
            format!("fallocate -l {size_bytes} {}", quoted(path)),
        );
    })
}

fn system(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    for_each_volume(context, survey, |survey, path, file| {
        let remedy = "# serve a file on XFS, or a block device";
        match (slow_system(file.file_system), file.direct_io_alignment) {
            (Some(name), _) => survey.bad(format!("{path}: on {name}"), remedy),
            (None, Some(0)) => survey.bad(format!("{path}: no direct I/O"), remedy),
            (None, Some(_)) => survey.good(format!("{path}: direct I/O")),
            (None, None) => {
                survey.unseen(format!("{path}: the kernel does not report alignments of direct I/O"));
            }
        }
    })
}

/// Returns the name of a file system that is slow beneath a target.
fn slow_system(magic: u64) -> Option<&'static str> {
    const SLOW: [(u64, &str); 5] = [
        (0x794c_7630, "overlay"),
        (0x6969, "NFS"),
        (0x9123_683e, "btrfs"),
        (0x6573_5546, "FUSE"),
        (0x2fc1_2fc1, "ZFS"),
    ];
    SLOW.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
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
