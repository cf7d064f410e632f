//! Conditions of volumes: at the end of the target, and for SIGUSR1.

use std::sync::Arc;

use isolane_volume::{Condition, Volume};

use crate::failure::Failure;

/// Logs the failures among the conditions of volumes. Returns their number.
pub fn log_failures(volumes: &[Arc<dyn Volume>]) -> usize {
    let conditions = volumes.iter().flat_map(|volume| volume.conditions());
    let failures = conditions.filter(|condition| condition.is_failure);
    failures.inspect(|Condition { name, text, .. }| log::error!("{name}: {text}")).count()
}

/// Returns the failure of a target whose volumes have `count` failures.
pub fn reject_failures(count: usize) -> Result<(), Failure> {
    match count {
        0 => Ok(()),
        _ => Err(Failure::new("not all data is kept", format!("{count} volumes have a problem"))
            .with_hint("the log names them")),
    }
}
