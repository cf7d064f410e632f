//! Checks of a running target, by its own counters.

use super::check::{Check, Severity};
use super::context::Context;
use super::survey::Survey;
use crate::system::ReadError;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "own.pool",
        severity: Severity::Warning,
        reads: "counter memory-waits of the target, twice",
        good: "no command waits for memory",
        reason: "a command that finds no page waits until others complete",
        is_sampled: true,
        run: pool,
    },
    Check {
        id: "own.log",
        severity: Severity::Warning,
        reads: "counter log-lines-lost of the target, twice",
        good: "no lost line: the reader of stderr keeps up",
        reason: "lines that name a cause are missing from the log",
        is_sampled: true,
        run: log,
    },
];

fn pool(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let remedy = "# serve with a larger --pool";
    check_counter(context, survey, "memory-waits", "commands waited for memory", remedy)
}

fn log(context: &Context, survey: &mut Survey) -> Result<(), ReadError> {
    let remedy = "# drain stderr of the target, or lower --log-level";
    check_counter(context, survey, "log-lines-lost", "log lines lost", remedy)
}

fn check_counter(
    context: &Context,
    survey: &mut Survey,
    name: &str,
    meaning: &str,
    remedy: &str,
) -> Result<(), ReadError> {
    let Some(snapshot) = context.snapshot()? else {
        survey.absent("no target given");
        return Ok(());
    };
    let Some(count) = snapshot.numbers.counters.get(name) else {
        survey.unseen(format!("the target has no counter {name}"));
        return Ok(());
    };
    let count = context.rise(name, *count);
    survey.judge(count == 0, format!("{count} {meaning} {}", context.period()), remedy);
    Ok(())
}
