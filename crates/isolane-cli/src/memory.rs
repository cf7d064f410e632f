//! Check of the size of memory volumes.
//!
//! Their memory is allocated when it is written, so a volume that is too large starts, and the kernel kills the target
//! later.

use std::fs;

use isolane_volume::Volume;
use isolane_volume::spec::{Source, SpecError, VolumeSpec};
use isolane_volumes::Kinds;

use crate::failure::Failure;
use crate::units::show_bytes;

/// Memory of the machine, in bytes.
#[derive(Debug, Clone, Copy)]
struct Machine {
    /// Memory and swap, within the limit of the control group.
    total: u64,
    available: u64,
}

/// Rejects memory volumes that cannot be filled beside `served` bytes of those that are served already, and warns about
/// volumes that exceed the available memory.
///
/// # Errors
/// If they are too large, or the volumes beneath one cannot be found.
pub fn check(kinds: &Kinds, specs: &[VolumeSpec], served: u64) -> Result<(), Failure> {
    let requested = requested(kinds, specs)?;
    Machine::read().map_or(Ok(()), |machine| machine.check(requested, served))
}

/// Warns about volumes of the program before that cannot be filled. Their data is here, so they are served nevertheless.
///
/// # Errors
/// If the volumes beneath one cannot be found.
pub fn warn_of_inherited(kinds: &Kinds, specs: &[VolumeSpec]) -> Result<(), Failure> {
    let requested = requested(kinds, specs)?;
    if let Some(Err(failure)) = Machine::read().map(|machine| machine.check(requested, 0)) {
        log::warn!("memory volumes continue, and are too large: {failure}");
    }
    Ok(())
}

/// Returns the size in bytes of all memory volumes in these ones.
///
/// # Errors
/// If the volumes beneath one cannot be found.
pub fn requested(kinds: &Kinds, specs: &[VolumeSpec]) -> Result<u64, Failure> {
    let bytes = |spec: &VolumeSpec| match spec.source {
        Source::Memory { bytes } => bytes,
        _ => 0,
    };
    let leaves = specs.iter().map(|spec| kinds.leaves(spec)).collect::<Result<Vec<_>, _>>();
    let leaves = leaves.map_err(Failure::from_error)?.concat();
    Ok(leaves.iter().map(bytes).fold(0, u64::saturating_add))
}

/// Returns the size in bytes of all memory volumes in an open one.
pub fn size(volume: &dyn Volume) -> u64 {
    let own = volume.memory().map_or(0, |_| volume.info().bytes());
    volume.members().iter().map(|member| size(&**member)).fold(own, u64::saturating_add)
}

/// Whether a volume, or one beneath it, is in memory, so that its data ends with it.
///
/// # Errors
/// If the volumes beneath it cannot be found.
pub fn is_part_of(kinds: &Kinds, spec: &VolumeSpec) -> Result<bool, SpecError> {
    let leaves = kinds.leaves(spec)?;
    Ok(leaves.iter().any(|leaf| matches!(leaf.source, Source::Memory { .. })))
}

/// Checks that there is memory for a copy of the data of memory volumes.
///
/// # Errors
/// The reason why not, as for users.
pub fn check_copy(bytes: u64) -> Result<(), String> {
    match Machine::read() {
        Some(machine) if machine.available < bytes => {
            let (bytes, available) = (show_bytes(bytes as f64), show_bytes(machine.available as f64));
            Err(format!(
                "memory volumes have {bytes} of data, and only {available} are available for its copy; free memory"
            ))
        }
        _ => Ok(()),
    }
}

impl Machine {
    fn read() -> Option<Machine> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let group = read("/proc/self/cgroup");
        let group = group.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
        let limit = read(&format!("/sys/fs/cgroup{group}/memory.max"));
        Machine::parse(&read("/proc/meminfo"), &limit)
    }

    /// Parses the texts of `/proc/meminfo` and of the control group's `memory.max`, which may be missing.
    fn parse(meminfo: &str, limit: &str) -> Option<Machine> {
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
        };
        let total = field("MemTotal:")? + field("SwapTotal:").unwrap_or(0);
        let total = limit.trim().parse().map_or(total, |limit| total.min(limit));
        Some(Machine { total, available: field("MemAvailable:")?.min(total) })
    }

    fn check(self, requested: u64, served: u64) -> Result<(), Failure> {
        let Machine { total, available } = self;
        let show = |bytes: u64| show_bytes(bytes as f64);
        let all = requested.saturating_add(served);
        if requested > 0 && all > total {
            let beside = match served {
                0 => String::new(),
                _ => format!("memory volumes of {} are served already, ", show(served)),
            };
            return Err(Failure::new(
                format!("cannot serve {} of memory", show(all)),
                format!(
                    "{beside}this machine has {}, and the kernel kills the target once that is full",
                    show(total)
                ),
            )
            .with_hint("choose less, or serve a sparse file, as in disk.img,size=1T"));
        }
        if requested > available {
            log::warn!(
                "memory volumes of {} exceed the available {}: the kernel may kill the target before they are full",
                show(requested),
                show(available)
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_volumes_larger_than_memory() {
        let meminfo = "MemTotal:       1048576 kB\nMemAvailable:    524288 kB\nSwapTotal:       1048576 kB\n";
        let check = |limit, requested| Machine::parse(meminfo, limit).unwrap().check(requested, 0);
        assert!(check("max\n", 2 << 30).is_ok());
        let error = check("", (2 << 30) + 1).unwrap_err().to_string();
        assert!(error.contains("this machine has 2.0 GiB") && error.contains("choose less"), "{error}");
        assert!(check("536870912\n", 600 << 20).is_err());
    }

    #[test]
    fn adds_served_volumes() {
        let meminfo = "MemTotal:       1048576 kB\nMemAvailable:    524288 kB\n";
        let check = |requested, served| Machine::parse(meminfo, "max\n").unwrap().check(requested, served);
        assert!(check(512 << 20, 512 << 20).is_ok());
        let error = check((512 << 20) + 1, 512 << 20).unwrap_err().to_string();
        assert!(
            error.contains("cannot serve 1.0 GiB") && error.contains("volumes of 512.0 MiB are served"),
            "{error}"
        );
        assert!(check(0, 2 << 30).is_ok(), "volumes without memory can come nevertheless");
        assert!(check(1, u64::MAX).is_err());
    }

    #[test]
    fn adds_volumes_up() {
        let specs = ["read-only:mem:10000T", "null:1T", "mem:10000T"];
        let specs = specs.map(|text| isolane_volumes::parse(text).unwrap());
        let check = |specs: &[VolumeSpec]| check(&Kinds::default(), specs, 0);
        assert!(check(&specs).unwrap_err().to_string().contains("19.5 PiB"));
        assert!(check(&specs[1..2]).is_ok());
    }
}
