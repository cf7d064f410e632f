//! The drawing, as SVG.

use std::fmt::Write;
use std::ops::RangeInclusive;

use super::counts::{ROWS, row_start};
use super::scale::{COLORS, LATENCY_MARKS, time_marks};
use super::{HeatMap, Strip};
use crate::text::{amount, date, duration, escaped, grouped, time_of_day};

const WIDTH: f64 = 1000.0;
/// Edges of the area with cells.
const LEFT: f64 = 72.0;
const RIGHT: f64 = 986.0;
/// Height of the title.
const TOP: f64 = 52.0;
/// Height of the line above a strip.
const HEAD: f64 = 26.0;
const GAP: f64 = 10.0;
/// Height of the axis of time.
const AXIS: f64 = 42.0;
const LEGEND: f64 = 44.0;
/// Minimum distance of the labels of latencies.
const LABEL_HEIGHT: f64 = 11.0;
const MARK: &str = "#d4002a";
const STYLE: &str = "text{font-family:'DejaVu Sans',Verdana,Arial,sans-serif;font-size:11px;fill:#222}\
    .title{font-size:16px;font-weight:bold}.name{font-size:12px;font-weight:bold}.soft{fill:#666}\
    .mark{fill:#d4002a}.end{text-anchor:end}.middle{text-anchor:middle}\
    .line{stroke:#999;stroke-opacity:.35;stroke-width:1}.frame{fill:none;stroke:#888}\
    path,.cell{shape-rendering:crispEdges}";

/// Draws a heat map as a document.
pub fn draw(map: &HeatMap) -> String {
    Drawing::new(map).document()
}

/// Positions that all strips share, and the text so far. Writing to a `String` does not fail.
struct Drawing<'a> {
    map: &'a HeatMap,
    rows: RangeInclusive<usize>,
    strip_height: f64,
    start_ms: u64,
    end_ms: u64,
    svg: String,
}

impl<'a> Drawing<'a> {
    fn new(map: &'a HeatMap) -> Drawing<'a> {
        let used = map.strips.iter().filter_map(|strip| strip.total.used_rows());
        let (first, last) =
            used.fold((ROWS, 0), |(first, last), (low, high)| (first.min(low), last.max(high)));
        let strip_height = match map.strips.len() {
            1 => 360.0,
            2 | 3 => 200.0,
            4..=8 => 120.0,
            _ => 76.0,
        };
        Drawing {
            map,
            // One empty row at each end.
            rows: first.saturating_sub(1)..=(last + 1).min(ROWS - 1),
            strip_height,
            start_ms: map.columns.iter().map(|column| column.start_ms).min().unwrap_or(0),
            end_ms: map.columns.iter().map(|column| column.end_ms).max().unwrap_or(0),
            svg: String::new(),
        }
    }

    fn document(mut self) -> String {
        let strips = self.map.strips.len() as f64;
        let end = TOP + AXIS * f64::from(self.has_upper_axis()) + strips * (HEAD + self.strip_height + GAP);
        let height = end + AXIS + LEGEND;
        let _ = write!(
            self.svg,
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"><style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>"##,
        );
        self.title();
        let mut y = TOP;
        if self.has_upper_axis() {
            y += AXIS;
            self.axis(y, -1.0);
        }
        for strip in &self.map.strips {
            self.strip(strip, y);
            y += HEAD + self.strip_height + GAP;
        }
        self.axis(y - GAP, 1.0);
        self.legend(y - GAP + AXIS + 8.0);
        self.svg + "</svg>\n"
    }

    /// Returns `true` if the strips are so many that the axis at the end is far from the first ones.
    fn has_upper_axis(&self) -> bool {
        self.map.strips.len() > 8
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escaped(text);
        let _ = write!(self.svg, r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{text}</text>"#);
    }

    fn title(&mut self) {
        let map = self.map;
        let names =
            if map.strips.len() == 1 { map.by.name().to_owned() } else { format!("{}s", map.by.name()) };
        let left_out = match map.left_out {
            0 => String::new(),
            more => format!(" with the most operations; {} more are left out", grouped(more as u64)),
        };
        let title = format!("Latency of {} {names}{left_out}", map.strips.len());
        self.text(LEFT, 20.0, "title", &title);
        let (start, end) = (self.start_ms, self.end_ms);
        let day = if date(start) == date(end) { String::new() } else { format!("{} ", date(end)) };
        let span = format!(
            "{} {} to {day}{} UTC ({} s), {}",
            date(start),
            time_of_day(start),
            time_of_day(end),
            grouped(end.saturating_sub(start).div_ceil(1000)),
            map.source,
        );
        self.text(LEFT, 38.0, "soft", &span);
    }

    fn strip(&mut self, strip: &Strip, y: f64) {
        let name = match &strip.outlier {
            Some(_) => format!("\u{25b6} {}", strip.name),
            None => strip.name.clone(),
        };
        self.text(LEFT, y + 14.0, if strip.outlier.is_some() { "name mark" } else { "name" }, &name);
        self.text(RIGHT, y + 14.0, "end soft", &summary(strip));
        let top = y + HEAD;
        let middle = top + self.strip_height / 2.0;
        let _ = write!(
            self.svg,
            r#"<text transform="translate(14 {middle:.1})rotate(-90)" class="middle soft">latency</text>"#,
        );
        self.latency_marks(top);
        self.cells(strip, top);
        self.frame(strip, top);
    }

    fn frame(&mut self, strip: &Strip, top: f64) {
        let (width, height) = (RIGHT - LEFT, self.strip_height);
        let _ = write!(
            self.svg,
            r#"<rect x="{LEFT}" y="{top:.1}" width="{width}" height="{height}" class="frame"/>"#
        );
        let Some(outlier) = &strip.outlier else { return };
        let mut path = String::new();
        for (column, _) in self.map.columns.iter().zip(&outlier.columns).filter(|(_, slow)| **slow) {
            let x = self.x_of(column.start_ms);
            let width = (self.x_of(column.end_ms) - x).max(1.5);
            let _ = write!(path, "M{x:.1} {:.1}h{width:.1}v4h-{width:.1}z", top - 5.0);
        }
        let _ = write!(
            self.svg,
            r#"<rect x="{:.1}" y="{top:.1}" width="4" height="{height}" fill="{MARK}"/><path d="{path}" fill="{MARK}"/>"#,
            LEFT - 4.0,
        );
    }

    fn latency_marks(&mut self, top: f64) {
        let mut last = f64::INFINITY;
        for ns in LATENCY_MARKS {
            let y = self.y_of((ns as f64).log2(), top);
            if y < top || y > top + self.strip_height {
                continue;
            }
            let _ = write!(self.svg, r#"<path d="M{LEFT} {y:.1}H{RIGHT}" class="line"/>"#);
            // Labels start at the bottom.
            if last - y >= LABEL_HEIGHT {
                self.text(LEFT - 6.0, y + 4.0, "end", &mark_text(ns));
                last = y;
            }
        }
    }

    /// Draws one path for each color, and one rectangle for each run of equal cells.
    fn cells(&mut self, strip: &Strip, top: f64) {
        let mut paths = vec![String::new(); COLORS.len()];
        for row in self.rows.clone() {
            let (y, below) = (self.y_of(row_start(row + 1), top), self.y_of(row_start(row), top));
            let height = below - y;
            let levels: Vec<Option<usize>> = strip
                .counts
                .iter()
                .zip(&self.map.columns)
                .map(|(counts, column)| {
                    (counts.row(row) > 0).then(|| self.map.levels.of(column.rate(counts.row(row))))
                })
                .collect();
            for (run, level) in self.runs(&levels) {
                let columns = &self.map.columns;
                let x = self.x_of(columns[*run.start()].start_ms);
                let width = (self.x_of(columns[*run.end()].end_ms) - x).max(1.0);
                let _ = write!(paths[level], "M{x:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z");
            }
        }
        for (path, color) in paths.iter().zip(COLORS).filter(|(path, _)| !path.is_empty()) {
            let _ = write!(self.svg, r#"<path d="{path}" fill="{color}"/>"#);
        }
    }

    /// Returns runs of adjacent columns with one color.
    fn runs(&self, levels: &[Option<usize>]) -> Vec<(RangeInclusive<usize>, usize)> {
        let mut runs: Vec<(RangeInclusive<usize>, usize)> = Vec::new();
        for (column, level) in levels.iter().enumerate() {
            let Some(level) = *level else { continue };
            match runs.last_mut() {
                Some((run, same)) if *same == level && self.touches(*run.end(), column) => {
                    *run = *run.start()..=column
                }
                _ => runs.push((column..=column, level)),
            }
        }
        runs
    }

    /// Returns `true` if `next` follows `column` without a visible gap.
    fn touches(&self, column: usize, next: usize) -> bool {
        let columns = &self.map.columns;
        let gap = self.x_of(columns[next].start_ms) - self.x_of(columns[column].end_ms);
        next == column + 1 && gap < 0.5
    }

    /// Draws the axis of time below `y`, or with `direction` -1 above it.
    fn axis(&mut self, y: f64, direction: f64) {
        let (labels, name) = (
            if direction > 0.0 { y + 18.0 } else { y - 10.0 },
            if direction > 0.0 { y + 34.0 } else { y - 26.0 },
        );
        for at in time_marks(self.start_ms, self.end_ms) {
            let x = self.x_of(at);
            let _ = write!(self.svg, r##"<path d="M{x:.1} {y:.1}v{:.1}" stroke="#444"/>"##, 5.0 * direction);
            self.text(x.clamp(LEFT + 28.0, RIGHT - 28.0), labels, "middle", &time_of_day(at));
        }
        self.text((LEFT + RIGHT) / 2.0, name, "middle soft", "time (UTC)");
    }

    fn legend(&mut self, y: f64) {
        const BOX: f64 = 44.0;
        self.text(LEFT, y + 10.0, "", "operations per second and cell:");
        let start = LEFT + 208.0;
        for (level, color) in COLORS.iter().enumerate() {
            let x = start + BOX * level as f64;
            let _ = write!(
                self.svg,
                r#"<rect x="{x}" y="{y}" width="{BOX}" height="12" fill="{color}" class="cell"/>"#,
            );
            let lowest = if level == 0 { "> 0".to_owned() } else { amount(self.map.levels.lowest(level)) };
            self.text(x + if level == 0 { 12.0 } else { 0.0 }, y + 25.0, "middle", &lowest);
        }
        if self.map.strips.iter().any(|strip| strip.outlier.is_some()) {
            let x = start + BOX * COLORS.len() as f64 + 40.0;
            let _ = write!(self.svg, r#"<path d="M{x} {:.1}h30v4h-30z" fill="{MARK}"/>"#, y + 4.0);
            self.text(x + 38.0, y + 10.0, "mark", "slower than its peers at this time");
        }
    }

    fn x_of(&self, unix_ms: u64) -> f64 {
        let span = self.end_ms.saturating_sub(self.start_ms).max(1) as f64;
        rounded(LEFT + (RIGHT - LEFT) * unix_ms.saturating_sub(self.start_ms) as f64 / span)
    }

    fn y_of(&self, log_ns: f64, top: f64) -> f64 {
        let (low, high) = (row_start(*self.rows.start()), row_start(*self.rows.end() + 1));
        rounded(top + self.strip_height * (high - log_ns) / (high - low))
    }
}

/// Rounds to the written digits, so that the end of a cell is the start of the next one.
fn rounded(position: f64) -> f64 {
    (position * 10.0).round() / 10.0
}

fn summary(strip: &Strip) -> String {
    let total = strip.total.to_histogram();
    let quantile = |quantile| duration(total.quantile(quantile));
    let slower = strip.outlier.as_ref().map(|outlier| {
        format!("p{} is {:.1}x its peers · ", (outlier.quantile * 1000.0).round() / 10.0, outlier.ratio)
    });
    format!(
        "{}p50 {} · p99 {} · p99.9 {} · max {} · {} operations",
        slower.unwrap_or_default(),
        quantile(0.5),
        quantile(0.99),
        quantile(0.999),
        duration(total.max_bound()),
        grouped(total.count()),
    )
}

/// Returns a power of ten with its unit.
fn mark_text(ns: u64) -> String {
    duration(ns).replace(".0", "")
}
