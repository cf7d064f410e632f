//! Check of the size of memory volumes.
//!
//! Their memory is allocated when it is written, so a volume that is too large starts, and the kernel kills the target
//! later.

mod groups;

use std::fs;

use isolane_volume::Volume;
use isolane_volume::spec::{Source, SpecError, VolumeSpec};
use isolane_volumes::Kinds;

use self::groups::Groups;
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

/// Checks that there is memory for a copy of that many bytes of memory volumes.
///
/// # Errors
/// The reason why not, as for users.
pub fn check_copy(bytes: u64) -> Result<(), String> {
    Machine::read().map_or(Ok(()), |machine| machine.check_copy(bytes))
}

impl Machine {
    fn read() -> Option<Machine> {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Machine::parse(&meminfo, Groups::read())
    }

    /// Parses the text of `/proc/meminfo`, which may be missing.
    fn parse(meminfo: &str, groups: Groups) -> Option<Machine> {
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
        };
        let total = field("MemTotal:")? + field("SwapTotal:").unwrap_or(0);
        let total = total.min(groups.limit);
        Some(Machine { total, available: field("MemAvailable:")?.min(total).min(groups.left) })
    }

    /// Hosts overwrite pages during a copy, which keeps the ones before.
    fn check_copy(self, bytes: u64) -> Result<(), String> {
        let needed = bytes.saturating_add(bytes / 4).saturating_add(COPY_MARGIN);
        if bytes == 0 || needed <= self.available {
            return Ok(());
        }
        let [bytes, needed, available] =
            [bytes, needed, self.available].map(|bytes| show_bytes(bytes as f64));
        Err(format!(
            "memory volumes have {bytes} to copy, which needs {needed}, and only {available} are available; free memory, \
             or raise the limit of the control group"
        ))
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

/// Memory that is left to the target and others during a copy, in bytes.
const COPY_MARGIN: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_volumes_larger_than_memory() {
        let meminfo = "MemTotal:       1048576 kB\nMemAvailable:    524288 kB\nSwapTotal:       1048576 kB\n";
        let check = |limit, requested| {
            let groups = Groups { limit, ..Groups::UNLIMITED };
            Machine::parse(meminfo, groups).unwrap().check(requested, 0)
        };
        assert!(check(u64::MAX, 2 << 30).is_ok());
        let error = check(u64::MAX, (2 << 30) + 1).unwrap_err().to_string();
        assert!(error.contains("this machine has 2.0 GiB") && error.contains("choose less"), "{error}");
        assert!(check(512 << 20, 600 << 20).is_err());
    }

    #[test]
    fn adds_served_volumes() {
        let meminfo = "MemTotal:       1048576 kB\nMemAvailable:    524288 kB\n";
        let check =
            |requested, served| Machine::parse(meminfo, Groups::UNLIMITED).unwrap().check(requested, served);
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
    fn copy_needs_memory_of_the_control_group() {
        let check = |left, bytes| {
            let groups = Groups { limit: 1 << 30, left };
            let meminfo = "MemTotal:       4194304 kB\nMemAvailable:    1048576 kB\n";
            Machine::parse(meminfo, groups).unwrap().check_copy(bytes)
        };
        assert!(check(189 << 20, 100 << 20).is_ok());
        let error = check(188 << 20, 100 << 20).unwrap_err();
        assert!(error.contains("100.0 MiB to copy") && error.contains("only 188.0 MiB"), "{error}");
        assert!(check(0, 0).is_ok(), "a target without memory volumes copies nothing");
        assert!(check(u64::MAX, u64::MAX).is_err());
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
