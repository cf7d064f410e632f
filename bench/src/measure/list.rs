//! What can be measured: the rows, their entrants, and what is missing for them.

use std::fmt::Write;

use super::entrant::Entrant;
use super::row::{Group, Row};

/// A line for each core row, two for each other, and one for each thing that is missing, as `missing` tells
/// it.
pub fn list(rows: &[Row], missing: impl Fn(&Entrant) -> Option<String>) -> String {
    let mut text = String::new();
    let core = || rows.iter().filter(|row| row.group == Group::Core);
    if let Some(first) = core().next() {
        let _ = writeln!(text, "Beside the floor and peers: {}", names(first.entrants.iter()));
    }
    for row in core() {
        let absent = names(row.entrants.iter().filter(|entrant| !entrant.can_carry(&row.load)));
        let absent = if absent.is_empty() { absent } else { format!(" (without {absent})") };
        let _ = writeln!(text, "  {:<16} {}{absent}", row.name, row.title);
    }
    let _ = writeln!(text, "One thing changed:");
    for row in rows.iter().filter(|row| row.group == Group::Switch) {
        let carrying = row.entrants.iter().filter(|entrant| entrant.can_carry(&row.load));
        let _ = writeln!(text, "  {:<16} {}\n{:19}{}", row.name, row.title, "", names(carrying));
    }
    for (what, entrants) in missing_for(rows, missing) {
        let _ = writeln!(text, "Without {}: {what}", entrants.join(", "));
    }
    text
}

fn names<'a>(entrants: impl Iterator<Item = &'a Entrant>) -> String {
    entrants.map(|entrant| entrant.name).collect::<Vec<_>>().join(", ")
}

/// Each thing that is missing once, with those who lack it.
fn missing_for(
    rows: &[Row],
    missing: impl Fn(&Entrant) -> Option<String>,
) -> Vec<(String, Vec<&'static str>)> {
    let mut found: Vec<(String, Vec<&'static str>)> = Vec::new();
    for entrant in rows.iter().flat_map(|row| row.entrants) {
        let Some(what) = missing(entrant) else { continue };
        match found.iter_mut().find(|(known, _)| *known == what) {
            None => found.push((what, vec![entrant.name])),
            Some((_, names)) if names.contains(&entrant.name) => {}
            Some((_, names)) => names.push(entrant.name),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;

    #[test]
    fn every_row_is_named_once_and_what_is_missing_is_told_once() {
        let missing =
            |entrant: &Entrant| entrant.name.contains("spdk").then(|| "nvmf_tgt is not there".into());
        let text = list(&rows(), missing);
        for row in rows() {
            let is_its = |line: &&str| line.trim_start().split(' ').next() == Some(row.name);
            assert_eq!(text.lines().filter(is_its).count(), 1, "{} in {text}", row.name);
        }
        assert_eq!(text.matches("nvmf_tgt").count(), 1, "{text}");
        assert!(
            text.contains("Without spdk, spdk-uring, spdk-host, spdk-target, spdk+digests: nvmf_tgt"),
            "{text}"
        );
    }

    #[test]
    fn core_rows_have_the_same_entrants() {
        let name = |row: &Row| row.entrants.iter().map(|entrant| entrant.name).collect::<Vec<_>>();
        let core: Vec<_> = rows().iter().filter(|row| row.group == Group::Core).map(name).collect();
        assert!(core.iter().all(|names| *names == core[0]), "the heading names those of the first");
    }
}
