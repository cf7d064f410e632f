//! Checks of the system for settings and neighbors that delay I/O.
//!
//! Each file of an area has its checks in the order of `CHECKS`. To add a check, add an entry there and a function that
//! records values in a `Survey`.
//!
//! Invariants:
//! * A check only reads; a remedy is a text.
//! * A check that cannot read its data is not good.

mod blk;
mod capture;
mod check;
mod context;
mod cpu;
mod devices;
mod document;
mod irq;
mod lim;
mod mem;
mod net;
mod nvme;
mod own;
mod pci;
mod survey;
#[cfg(test)]
mod tests;

pub use capture::capture;
pub use check::{Check, Finding, Severity};
pub use context::Context;
pub use document::document;
pub use survey::State;

use survey::Survey;

/// The checks of each area.
const AREAS: &[(&str, &[Check])] = &[
    ("Processors", cpu::CHECKS),
    ("Memory", mem::CHECKS),
    ("Limits", lim::CHECKS),
    ("Interrupts", irq::CHECKS),
    ("Block devices and file systems", blk::CHECKS),
    ("Network", net::CHECKS),
    ("PCI devices", pci::CHECKS),
    ("NVMe drives", nvme::CHECKS),
    ("The running target", own::CHECKS),
];

/// Returns all checks.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    AREAS.iter().flat_map(|(_, checks)| *checks)
}

/// Returns the checks with an ID or an area, or `None` without any.
pub fn select(name: &str) -> Option<Vec<&'static Check>> {
    let found: Vec<_> = checks().filter(|check| check.id == name || check.area() == name).collect();
    (!found.is_empty()).then_some(found)
}

/// Runs checks. Takes one second more if one of them needs two readings of the running system. A copy of it has both.
pub fn run(context: &mut Context, checks: &[&'static Check]) -> Vec<Finding> {
    let sampled: Vec<_> = checks.iter().filter(|check| check.is_sampled).collect();
    if context.root.has_two_readings() && !sampled.is_empty() {
        for check in sampled {
            survey(context, check);
        }
        if context.root.is_system() {
            std::thread::sleep(context::INTERVAL);
        }
        context.start_second_reading();
    }
    checks.iter().map(|check| survey(context, check)).collect()
}

fn survey(context: &Context, check: &Check) -> Finding {
    let mut survey = Survey::default();
    if let Err(error) = (check.run)(context, &mut survey) {
        survey.unseen(error);
    }
    Finding::new(check, survey)
}

/// Returns the exit status of all findings: 0 fine, 3 warnings, 4 errors.
pub fn exit_status(findings: &[Finding]) -> u8 {
    findings.iter().map(Finding::exit_status).max().unwrap_or_default()
}

/// Returns a shell script with all remedies.
pub fn script(findings: &[Finding]) -> String {
    let mut text =
        String::from("#!/bin/sh\n# Remedies of isolane doctor. Read each line before you run it as root.\n");
    for finding in findings.iter().filter(|finding| finding.state == State::Bad) {
        text += &format!("\n# {}: {}\n", finding.id, finding.value);
        text.extend(finding.remedy.iter().map(|line| format!("{line}\n")));
    }
    text
}
