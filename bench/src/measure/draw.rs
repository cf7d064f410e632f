//! Drawings of a report: one bar for each entrant of each row, as long as its ratio to the floor.

use super::report::Report;
use super::row::{Group, Row};
use super::rows::rows;

/// An SVG of the core rows; none if the floor was not measured. Longer bars are better in every row.
pub fn draw(report: &Report) -> Option<String> {
    let bars: Vec<Vec<Bar>> = core_rows().iter().map(|row| bars_of(report, row)).collect();
    if bars.iter().all(Vec::is_empty) {
        return None;
    }
    let mut body = String::new();
    let mut top = TOP;
    for (row, bars) in core_rows().iter().zip(&bars).filter(|(_, bars)| !bars.is_empty()) {
        body.push_str(&text(LABELS - 8, top + ROW_HEAD / 2, "end", row.title));
        for bar in bars {
            body.push_str(&bar.draw(top));
            top += BAR + GAP;
        }
        top += ROW_GAP;
    }
    Some(frame(top, &body))
}

/// One entrant of one row.
struct Bar {
    entrant: usize,
    /// Its rate divided by the floor's, or the floor's mean divided by its own.
    share: f64,
}

/// Who is drawn, in which words and colour.
const ENTRANTS: &[(&str, &str, &str)] = &[
    ("isolane", "Isolane", "#1f77b4"),
    ("spdk", "SPDK, epoll", "#ff7f0e"),
    ("spdk-uring", "SPDK, io_uring", "#ffbb78"),
    ("nbdkit", "NBD: nbdkit, fio", "#2ca02c"),
    ("qemu-nbd", "NBD: QEMU, fio", "#98df8a"),
    ("tgt", "iSCSI: tgt, iscsi-perf", "#9467bd"),
];

const WIDTH: u32 = 900;
const LABELS: u32 = 290;
const UNIT: u32 = 480;
const TOP: u32 = 60;
const BAR: u32 = 12;
const GAP: u32 = 2;
const ROW_HEAD: u32 = 20;
const ROW_GAP: u32 = 14;

fn core_rows() -> Vec<Row> {
    rows().into_iter().filter(|row| row.group == Group::Core).collect()
}

fn bars_of(report: &Report, row: &Row) -> Vec<Bar> {
    let Some(measured) = report.row(row.name) else { return Vec::new() };
    let share = |(entrant, (name, ..)): (usize, &(&str, &str, &str))| {
        let ratio = measured.ratio(name, &["floor"], row.figure)?;
        Some(Bar { entrant, share: if row.figure.is_more_better() { ratio } else { 1.0 / ratio } })
    };
    ENTRANTS.iter().enumerate().filter_map(share).collect()
}

impl Bar {
    fn draw(&self, top: u32) -> String {
        let width = (self.share * f64::from(UNIT)).round().min(f64::from(WIDTH - LABELS - 50)) as u32;
        let colour = ENTRANTS[self.entrant].2;
        let bar = format!(
            "<rect x=\"{LABELS}\" y=\"{top}\" width=\"{width}\" height=\"{BAR}\" fill=\"{colour}\"/>\n"
        );
        bar + &text(LABELS + width + 4, top + BAR - 2, "start", &format!("{:.2}", self.share))
    }
}

fn frame(bottom: u32, body: &str) -> String {
    let height = bottom + 10;
    let floor = LABELS + UNIT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (index, (_, title, colour)) in ENTRANTS.iter().enumerate() {
        let left = 20 + 145 * index as u32;
        svg.push_str(&format!(
            "<rect x=\"{left}\" y=\"12\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\n"
        ));
        svg.push_str(&text(left + 14, 21, "start", title));
    }
    svg.push_str(&format!(
        "<line x1=\"{floor}\" y1=\"48\" x2=\"{floor}\" y2=\"{bottom}\" stroke=\"#555\" stroke-dasharray=\"4 3\"/>\n"
    ));
    svg.push_str(&text(floor, 44, "middle", "the floor: bare TCP"));
    svg + body + "</svg>\n"
}

fn text(x: u32, y: u32, anchor: &str, words: &str) -> String {
    format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" fill=\"#222\">{words}</text>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_bar_is_better_for_round_trips_too() {
        let mut report = Report::default();
        for (name, mean_us) in [("floor", 10.0), ("isolane", 12.5)] {
            let sample = [("iops".to_owned(), 1e6 / mean_us), ("mean_us".to_owned(), mean_us)].into();
            report.place("r4k-qd1", 1.0, name).samples.push(sample);
        }
        let svg = draw(&report).unwrap();
        assert!(svg.contains(">0.80</text>"), "{svg}");
        assert!(draw(&Report::default()).is_none());
    }
}
