//! Tables in Markdown, made from a report.

use super::figures::Figure;
use super::machine::head;
use super::report::{Measured, Report};
use super::row::{Goal, Group, Limit, Row};
use super::rows::{ALL_SPDK, rows};

/// All tables of what a report holds.
pub fn tables(report: &Report) -> String {
    let parts = [
        heading(report),
        section("Beside the floor and SPDK", &columns(report, BESIDE)),
        section("Each other's hosts and targets", &columns(report, CROSS)),
        section("What a distribution offers", &columns(report, OFFERED)),
        section("Switches and surroundings", &switches(report)),
        section("Goals", &goals(report)),
        section("What failed", &failures(report)),
    ];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
}

/// A column: an entrant and the words above it.
type Column = (&'static str, &'static str);

const BESIDE: &[Column] =
    &[("floor", "floor"), ("isolane", "Isolane"), ("spdk", "SPDK, epoll"), ("spdk-uring", "SPDK, io_uring")];
const CROSS: &[Column] = &[
    ("spdk", "SPDK alone"),
    ("spdk-host", "our target, SPDK's host"),
    ("spdk-target", "SPDK's target, our host"),
    ("isolane", "Isolane alone"),
];
const OFFERED: &[Column] = &[
    ("floor", "floor"),
    ("isolane", "Isolane"),
    ("nbdkit", "NBD: nbdkit, fio"),
    ("qemu-nbd", "NBD: QEMU, fio"),
    ("tgt", "iSCSI: tgt, iscsi-perf"),
];

fn heading(report: &Report) -> String {
    let seconds = report.rows.first().map_or(0.0, |row| row.seconds);
    let counts = report.rows.iter().flat_map(|row| &row.entrants).map(|found| found.samples.len());
    let head = head(&report.machine, &report.commit, &report.date, &report.command);
    format!(
        "{head}: medians of {} samples of {seconds} s, taken in turn; smallest and largest in brackets; ratios \
         are medians of the rounds'.\n",
        counts.max().unwrap_or(0),
    )
}

fn section(title: &str, body: &str) -> String {
    if body.is_empty() { String::new() } else { format!("## {title}\n\n{body}") }
}

/// The rows that have the first two of the columns at least, with the ratio of every column to the first;
/// nothing if that only repeats what stands [`BESIDE`].
fn columns(report: &Report, columns: &[Column]) -> String {
    let is_measured = |column: &&Column| {
        let has = |row: &Measured| row.spread(column.0, Figure::Rate).is_some();
        report.rows.iter().any(|measured| core_row(&measured.row).is_some() && has(measured))
    };
    let present: Vec<&Column> = columns.iter().filter(is_measured).collect();
    let is_beside = |column: &&Column| BESIDE.iter().any(|(entrant, _)| *entrant == column.0);
    let says_more = columns == BESIDE || !present.iter().all(is_beside);
    if present.len() < 2 || present[0].0 != columns[0].0 || !says_more {
        return String::new();
    }
    let mut text = "| work |".to_owned();
    present.iter().for_each(|(_, title)| text.push_str(&format!(" {title} |")));
    text.push_str(&format!("\n|---|{}\n", "---|".repeat(present.len())));
    for row in rows().iter().filter(|row| row.group == Group::Core) {
        if let Some(measured) = report.row(row.name) {
            text.push_str(&line(row, measured, &present));
        }
    }
    text
}

fn core_row(name: &str) -> Option<Row> {
    rows().into_iter().find(|row| row.name == name && row.group == Group::Core)
}

fn line(row: &Row, measured: &Measured, columns: &[&Column]) -> String {
    let mut text = format!("| {} |", row.title);
    for (entrant, _) in columns {
        let ratio = measured.ratio(entrant, &[columns[0].0], row.figure);
        let ratio = ratio.filter(|_| *entrant != columns[0].0);
        let ratio = ratio.map_or(String::new(), |ratio| format!(" **{ratio:.2}x**"));
        text.push_str(&format!(" {}{ratio} |", cell(measured, entrant, row.figure)));
    }
    text + "\n"
}

fn cell(measured: &Measured, entrant: &str, figure: Figure) -> String {
    let Some(spread) = measured.spread(entrant, figure) else { return "–".into() };
    let show = |value| figure.show(value);
    // The unit stands once.
    let bare = |value| show(value).split(' ').next().unwrap_or_default().to_owned();
    format!("{} ({}–{})", show(spread.median), bare(spread.min), bare(spread.max))
}

/// One line for each figure of each entrant.
fn switches(report: &Report) -> String {
    let mut text = String::new();
    for row in rows().iter().filter(|row| row.group == Group::Switch) {
        let Some(measured) = report.row(row.name) else { continue };
        for entrant in row.entrants {
            let figures: Vec<String> = Figure::ALL
                .iter()
                .filter(|figure| measured.spread(entrant.name, **figure).is_some())
                .map(|figure| format!("{} {}", figure.title(), cell(measured, entrant.name, *figure)))
                .collect();
            if !figures.is_empty() {
                text.push_str(&format!("| {} | {} | {} |\n", row.title, entrant.name, figures.join("; ")));
            }
        }
    }
    if text.is_empty() { text } else { format!("| work | who | figures |\n|---|---|---|\n{text}") }
}

fn goals(report: &Report) -> String {
    let mut text = String::new();
    for row in rows() {
        let Some(measured) = report.row(row.name) else { continue };
        for goal in row.goals {
            if let Some(ratio) = measured.ratio(goal.of, goal.to, goal.figure) {
                text.push_str(&goal_line(&row, goal, ratio));
            }
        }
    }
    let head = "| work | figure | ratio | is | should be | |\n|---|---|---|---|---|---|\n";
    if text.is_empty() { text } else { format!("{head}{text}") }
}

fn goal_line(row: &Row, goal: &Goal, ratio: f64) -> String {
    let to = if goal.to == ALL_SPDK { "spdk, the better one".into() } else { goal.to.join(", ") };
    let limit = match goal.limit {
        Limit::AtLeast(least) => format!("≥ {least:.2}"),
        Limit::AtMost(most) => format!("≤ {most:.2}"),
    };
    let met = if goal.limit.is_met(ratio) { "met" } else { "**not met**" };
    let (title, figure, of) = (row.title, goal.figure.title(), goal.of);
    format!("| {title} | {figure} | {of} / {to} | {ratio:.2} | {limit} | {met} |\n")
}

fn failures(report: &Report) -> String {
    let mut text = String::new();
    for measured in &report.rows {
        for entrant in measured.entrants.iter().filter(|entrant| !entrant.errors.is_empty()) {
            let (count, last) = (entrant.errors.len(), entrant.errors.last().map_or("", String::as_str));
            let last = last.lines().last().unwrap_or_default();
            text.push_str(&format!("* {}, {}: {count} times, at last: {last}\n", measured.row, entrant.name));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::default();
        for (row, name, iops, mean_us) in [
            ("r4k-qd1", "floor", 1e5, 10.0),
            ("r4k-qd1", "isolane", 8e4, 12.5),
            ("r4k-qd32", "floor", 1e6, 32.0),
            ("r4k-qd32", "isolane", 9.5e5, 33.0),
        ] {
            let sample = [("iops".to_owned(), iops), ("mean_us".to_owned(), mean_us)].into();
            report.place(row, 1.0, name).samples.push(sample);
        }
        report
    }

    #[test]
    fn depth_one_is_shown_as_a_round_trip_and_the_rest_as_a_rate() {
        let text = tables(&report());
        assert!(text.contains("| 10.00 µs (10.00–10.00) | 12.50 µs (12.50–12.50) **1.25x** |"), "{text}");
        assert!(text.contains("| 1000 k/s (1000–1000) | 950 k/s (950–950) **0.95x** |"), "{text}");
    }

    #[test]
    fn goals_say_whether_they_are_met_and_peers_that_did_not_run_are_left_out() {
        let text = tables(&report());
        assert!(text.contains("isolane / floor | 1.25 | ≤ 1.08 | **not met** |"), "{text}");
        assert!(text.contains("isolane / floor | 0.95 | ≥ 0.90 | met |"), "{text}");
        assert!(!text.contains("SPDK, epoll"), "{text}");
    }
}
