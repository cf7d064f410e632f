//! The generation of a volume: the time during which no completed write is lost.

use uuid::Uuid;

/// Identifies the time during which no completed write is lost. Hosts compare it after a reconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Replaced whenever completed writes may have been lost.
    pub id: Uuid,
    /// Completed writes that are lost then.
    pub loses: RestartLoss,
}

/// Completed writes that are lost when the generation changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartLoss {
    /// None: every write is durable when it completes.
    Nothing,
    /// Those that are neither flushed nor written with `fua`.
    Cache,
    /// All.
    Content,
}

impl Generation {
    /// Returns the generation of a volume whose data a running kernel keeps, in its page cache and in its disks:
    /// it ends when the machine restarts, but not with a failed sync. `None` if the kernel does not tell its boot
    /// ID.
    pub(crate) fn of_machine(loses: RestartLoss) -> Option<Generation> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let id = Uuid::parse_str(text.trim()).ok().filter(|id| !id.is_nil())?;
        Some(Generation { id, loses })
    }

    /// Returns the generation of a volume that begins now, and ends with the program.
    pub(crate) fn of_program(loses: RestartLoss) -> Generation {
        Generation { id: Uuid::new_v4(), loses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{open, spec};

    fn generation(text: &str) -> Generation {
        open(&spec::parse(text).unwrap()).unwrap().generation().unwrap()
    }

    #[test]
    fn a_memory_volume_has_another_generation_each_time() {
        let (one, other) = (generation("mem:1M"), generation("mem:1M"));
        assert_ne!(one.id, other.id);
        assert_eq!((one.loses, generation("null:1M").loses), (RestartLoss::Content, RestartLoss::Nothing));
    }

    #[test]
    fn a_file_keeps_its_generation_until_the_machine_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk").display().to_string();
        let first = generation(&format!("{path},size=1M"));
        assert_eq!((first, first.loses), (generation(&path), RestartLoss::Cache));
        for durable in ["write-through", "ro"] {
            let other = generation(&format!("{path},{durable}"));
            assert_eq!((other.id, other.loses), (first.id, RestartLoss::Nothing));
        }
    }
}
