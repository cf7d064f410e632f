//! A check and its result.

use serde::Serialize;

use super::context::Context;
use super::survey::{State, Survey};
use crate::system::ReadError;

/// Importance of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Improves some workloads.
    Information,
    /// Costs latency or throughput.
    Warning,
    /// Causes long stalls or failures.
    Error,
}

impl Severity {
    /// Returns the name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Information => "information",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A check of one setting or counter.
#[derive(Debug)]
pub struct Check {
    /// Area and name, for example `cpu.quota`.
    pub id: &'static str,
    /// Importance if the value is not good.
    pub severity: Severity,
    /// Files that the check reads.
    pub reads: &'static str,
    /// The good value.
    pub good: &'static str,
    /// Reason for the good value.
    pub reason: &'static str,
    /// Needs two readings, one second apart.
    pub(super) is_sampled: bool,
    /// Surveys the system; an error of a file is data that was not seen.
    pub(super) run: fn(&Context, &mut Survey) -> Result<(), ReadError>,
}

impl Check {
    /// Returns the part of the ID before the dot.
    pub fn area(&self) -> &'static str {
        self.id.split('.').next().unwrap_or_default()
    }
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// ID of the check.
    pub id: &'static str,
    /// Importance if the value is not good.
    pub severity: Severity,
    /// State of the check.
    pub state: State,
    /// Values that were read, or reasons why data was not seen.
    pub value: String,
    /// The good value.
    pub good: &'static str,
    /// Reason for the good value.
    pub reason: &'static str,
    /// Shell commands that fix the value; lines with `#` are instructions.
    pub remedy: Vec<String>,
}

impl Finding {
    /// Returns the result of a check.
    pub(super) fn new(check: &Check, survey: Survey) -> Self {
        let Check { id, severity, good, reason, .. } = *check;
        let (state, value, remedy) = survey.finish();
        Finding { id, severity, state, value, good, reason, remedy }
    }

    /// Returns the exit status that the finding causes: 0 fine, 3 warning, 4 error.
    pub fn exit_status(&self) -> u8 {
        match (self.state, self.severity) {
            (State::Good | State::Absent, _) | (_, Severity::Information) => 0,
            (State::Unseen, _) | (State::Bad, Severity::Warning) => 3,
            (State::Bad, Severity::Error) => 4,
        }
    }
}
