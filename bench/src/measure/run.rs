//! Taking samples: every row's entrants in turn, and what was found kept after each.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use super::drive::sample;
use super::entrant::Entrant;
use super::figures::Sample;
use super::lab::Lab;
use super::machine::{Machine, commit, date};
use super::report::{self, Report};
use super::row::Row;
use super::start::forget_memory_file;

/// What is measured, and how often.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The rows.
    pub rows: Vec<Row>,
    /// Only these peers; all if it is empty. `isolane` stands for all entrants of that name.
    pub peers: Vec<String>,
    /// Samples of each entrant.
    pub samples: usize,
    /// Seconds of each sample.
    pub seconds: f64,
    /// Where the report is kept; one that is there is added to.
    pub json: PathBuf,
    /// Whether samples that are there already count.
    pub is_resumed: bool,
}

/// Takes all samples. One that fails is noted, and the others go on.
pub fn run(plan: &Plan, lab: &Lab) -> io::Result<Report> {
    let mut report = if plan.json.exists() { report::read(&plan.json)? } else { Report::default() };
    note_command(&mut report.command);
    (report.machine, report.commit, report.date) = (Machine::here(), commit(), date());
    // What cannot be written is told before anything is measured.
    report::write(&report, &plan.json)?;
    let mut told = BTreeSet::new();
    for row in &plan.rows {
        let entrants = entrants(plan, lab, row, &mut told);
        run_row(plan, lab, row, &entrants, &mut report)?;
    }
    forget_memory_file();
    Ok(report)
}

/// A report that is added to comes of several commands.
fn note_command(commands: &mut String) {
    let command = format!("cargo xtask {}", std::env::args().skip(1).collect::<Vec<_>>().join(" "));
    if commands.split("; ").all(|noted| noted != command) {
        commands.push_str(if commands.is_empty() { "" } else { "; " });
        commands.push_str(&command);
    }
}

/// Those of a row that were asked for and that can run; what is missing is told once.
fn entrants(plan: &Plan, lab: &Lab, row: &Row, told: &mut BTreeSet<String>) -> Vec<Entrant> {
    let is_asked_for = |entrant: &&Entrant| {
        let names = [entrant.name, entrant.peer()];
        plan.peers.is_empty() || plan.peers.iter().any(|peer| names.contains(&peer.as_str()))
    };
    let can_run = |entrant: &&Entrant| match lab.missing(entrant) {
        None => true,
        Some(missing) => {
            if told.insert(missing.clone()) {
                eprintln!("skipping {}: {missing}", entrant.name);
            }
            false
        }
    };
    let carries = |entrant: &&Entrant| entrant.can_carry(&row.load);
    row.entrants.iter().filter(is_asked_for).filter(carries).filter(can_run).copied().collect()
}

fn run_row(plan: &Plan, lab: &Lab, row: &Row, entrants: &[Entrant], report: &mut Report) -> io::Result<()> {
    for entrant in entrants {
        let place = report.place(row.name, plan.seconds, entrant.name);
        if !plan.is_resumed {
            (place.samples, place.errors) = Default::default();
        }
    }
    for round in 0..plan.samples {
        for entrant in entrants {
            if report.place(row.name, plan.seconds, entrant.name).samples.len() > round {
                continue;
            }
            eprint!("{} {}/{} {}: ", row.name, round + 1, plan.samples, entrant.name);
            let found = sample(lab, entrant, &row.load, plan.seconds);
            tell(row, &found);
            let place = report.place(row.name, plan.seconds, entrant.name);
            match found {
                Ok(sample) => place.samples.push(sample),
                Err(error) => place.errors.push(error.to_string()),
            }
            report::write(report, &plan.json)?;
        }
    }
    Ok(())
}

fn tell(row: &Row, found: &io::Result<Sample>) {
    match found {
        Ok(sample) => match sample.get(row.figure.key()) {
            Some(value) => eprintln!("{}", row.figure.show(*value)),
            None => eprintln!("{sample:?}"),
        },
        Err(error) => eprintln!("failed: {error}"),
    }
}
