//! Generation of a volume: a period in which no completed write is lost.

use uuid::Uuid;

/// Identifies a period in which no completed write is lost. Hosts compare it after a reconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Changes whenever completed writes may have been lost.
    pub id: Uuid,
    /// Writes that a change of generation may lose.
    pub loses: RestartLoss,
}

/// Completed writes that a change of generation may lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartLoss {
    /// None: every write is durable when it completes.
    Nothing,
    /// Writes that are neither flushed nor written with `fua`.
    Cache,
    /// All writes.
    Content,
}

impl Generation {
    /// Returns the generation of a volume whose data the running kernel keeps, in its page cache
    /// and its disks. It changes on reboot, but not with a failed sync. `None` without a boot ID.
    pub(crate) fn of_boot(loses: RestartLoss) -> Option<Generation> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let id = Uuid::parse_str(text.trim()).ok().filter(|id| !id.is_nil())?;
        Some(Generation { id, loses })
    }

    /// Returns a new generation, which ends with this process.
    pub(crate) fn of_process(loses: RestartLoss) -> Generation {
        Generation { id: Uuid::new_v4(), loses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{open, spec};

    fn generation(text: &str) -> Generation {
        open(&spec::parse(text).unwrap()).unwrap().description().generation.unwrap()
    }

    #[test]
    fn memory_volumes_have_new_generations() {
        let (one, other) = (generation("mem:1M"), generation("mem:1M"));
        assert_ne!(one.id, other.id);
        assert_eq!((one.loses, generation("null:1M").loses), (RestartLoss::Content, RestartLoss::Nothing));
    }

    #[test]
    fn files_keep_generation_until_reboot() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk").display().to_string();
        let first = generation(&format!("{path},size=1M"));
        assert_eq!((first, first.loses), (generation(&path), RestartLoss::Cache));
        for durable in ["write-through", "ro"] {
            let other = generation(&format!("{path},{durable}"));
            assert_eq!((other.id, other.loses), (first.id, RestartLoss::Nothing));
        }
    }
}
