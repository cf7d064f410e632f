//! The arrangement of a heat map: title, strips, axes, and legend.

use std::ops::RangeInclusive;

use super::counts::{ROWS, row_start};
use super::scale::{COLORS, LATENCY_MARKS, time_marks};
use super::shape::{Anchor, Area, Label, MARK, Shape, Style};
use super::{HeatMap, Strip};
use crate::text::{amount, date, duration, grouped, time_of_day};

pub const WIDTH: f64 = 1000.0;
/// Edges of the area with cells.
pub const LEFT: f64 = 72.0;
pub const RIGHT: f64 = 986.0;
/// Height of the title.
const TOP: f64 = 52.0;
/// Height of a line of text above a strip.
const LINE: f64 = 16.0;
const GAP: f64 = 10.0;
/// Height of the axis of time.
const AXIS: f64 = 42.0;
const LEGEND: f64 = 44.0;
/// Minimum distance of the labels of latencies.
const LABEL_HEIGHT: f64 = 11.0;
/// Space for a character of a name and of other text. Most are narrower.
const NAME_WIDTH: f64 = 8.5;
const TEXT_WIDTH: f64 = 7.0;
const LIGHT_LINE: &str = "#dbdbdb";
const TICK: &str = "#444444";

/// Returns the shapes of a heat map, and its width and height.
pub fn draw(map: &HeatMap) -> (Vec<Shape>, (f64, f64)) {
    let mut drawing = Drawing::new(map);
    let height = drawing.draw();
    (drawing.shapes, (WIDTH, height))
}

/// Positions that all strips share, and the shapes so far.
struct Drawing<'a> {
    map: &'a HeatMap,
    rows: RangeInclusive<usize>,
    strip_height: f64,
    /// The quantiles of a strip are below its name.
    has_two_lines: bool,
    start_ms: u64,
    end_ms: u64,
    shapes: Vec<Shape>,
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
            has_two_lines: map.strips.iter().any(|strip| !fits_on_one_line(strip)),
            start_ms: map.columns.iter().map(|column| column.start_ms).min().unwrap_or(0),
            end_ms: map.columns.iter().map(|column| column.end_ms).max().unwrap_or(0),
            shapes: Vec::new(),
        }
    }

    /// Returns the height.
    fn draw(&mut self) -> f64 {
        self.title();
        let mut y = TOP;
        if self.has_upper_axis() {
            y += AXIS;
            self.axis(y, -1.0);
        }
        for strip in &self.map.strips {
            self.strip(strip, y);
            y += self.head() + self.strip_height + GAP;
        }
        self.axis(y - GAP, 1.0);
        self.legend(y - GAP + AXIS + 8.0);
        y + AXIS + LEGEND
    }

    /// Returns the height above the cells of a strip.
    fn head(&self) -> f64 {
        LINE * (1.0 + f64::from(self.has_two_lines)) + GAP
    }

    /// Returns `true` if the strips are so many that the axis at the end is far from the first ones.
    fn has_upper_axis(&self) -> bool {
        self.map.strips.len() > 8
    }

    fn text(&mut self, (x, y): (f64, f64), style: Style, anchor: Anchor, text: &str) {
        let text = text.to_owned();
        self.shapes.push(Shape::Text(Label { text, x, y, style, anchor, is_upward: false }));
    }

    fn fill(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), color: &'static str) {
        self.shapes.push(Shape::Fill(vec![Area { x, y, width, height }], color));
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
        self.text((LEFT, 20.0), Style::Title, Anchor::Start, &title);
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
        self.text((LEFT, 38.0), Style::Soft, Anchor::Start, &span);
    }

    fn strip(&mut self, strip: &Strip, y: f64) {
        let (style, prefix) = match strip.outlier {
            Some(_) => (Style::MarkedName, "\u{bb} "),
            None => (Style::Name, ""),
        };
        self.text((LEFT, y + 14.0), style, Anchor::Start, &format!("{prefix}{}", strip.name));
        let top = y + self.head();
        if self.has_two_lines {
            self.text((LEFT, y + 14.0 + LINE), Style::Soft, Anchor::Start, &summary(strip));
        } else {
            self.text((RIGHT, y + 14.0), Style::Soft, Anchor::End, &summary(strip));
        }
        self.shapes.push(Shape::Text(Label {
            text: "latency".to_owned(),
            x: 14.0,
            y: top + self.strip_height / 2.0,
            style: Style::Soft,
            anchor: Anchor::Middle,
            is_upward: true,
        }));
        self.latency_marks(top);
        self.cells(strip, top);
        self.frame(strip, top);
    }

    fn frame(&mut self, strip: &Strip, top: f64) {
        let height = self.strip_height;
        self.shapes.push(Shape::Frame(Area { x: LEFT, y: top, width: RIGHT - LEFT, height }));
        let Some(outlier) = &strip.outlier else { return };
        self.fill((LEFT - 4.0, top), (4.0, height), MARK);
        let slow = self.map.columns.iter().zip(&outlier.columns).filter(|(_, slow)| **slow);
        let areas = slow.map(|(column, _)| {
            let x = self.x_of(column.start_ms);
            let width = (self.x_of(column.end_ms) - x).max(1.5);
            Area { x, y: top - 5.0, width, height: 4.0 }
        });
        self.shapes.push(Shape::Fill(areas.collect(), MARK));
    }

    fn latency_marks(&mut self, top: f64) {
        let mut last = f64::INFINITY;
        for ns in LATENCY_MARKS {
            let y = self.y_of((ns as f64).log2(), top);
            if y < top || y > top + self.strip_height {
                continue;
            }
            self.fill((LEFT, y), (RIGHT - LEFT, 1.0), LIGHT_LINE);
            // Labels start at the bottom.
            if last - y >= LABEL_HEIGHT {
                self.text((LEFT - 6.0, y + 4.0), Style::Plain, Anchor::End, &mark_text(ns));
                last = y;
            }
        }
    }

    /// Adds one shape for each color, and one rectangle for each run of equal cells.
    fn cells(&mut self, strip: &Strip, top: f64) {
        let mut areas = vec![Vec::new(); COLORS.len()];
        for row in self.rows.clone() {
            let (y, below) = (self.y_of(row_start(row + 1), top), self.y_of(row_start(row), top));
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
                areas[level].push(Area { x, y, width, height: below - y });
            }
        }
        let used = areas.into_iter().zip(COLORS).filter(|(areas, _)| !areas.is_empty());
        self.shapes.extend(used.map(|(areas, color)| Shape::Fill(areas, color)));
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
            self.fill((x, if direction > 0.0 { y } else { y - 5.0 }), (1.0, 5.0), TICK);
            let label = (x.clamp(LEFT + 28.0, RIGHT - 28.0), labels);
            self.text(label, Style::Plain, Anchor::Middle, &time_of_day(at));
        }
        self.text(((LEFT + RIGHT) / 2.0, name), Style::Soft, Anchor::Middle, "time (UTC)");
    }

    fn legend(&mut self, y: f64) {
        const BOX: f64 = 44.0;
        self.text((LEFT, y + 10.0), Style::Plain, Anchor::Start, "operations per second and cell:");
        let start = LEFT + 208.0;
        for (level, color) in COLORS.iter().enumerate() {
            let x = start + BOX * level as f64;
            self.fill((x, y), (BOX, 12.0), color);
            let lowest = if level == 0 { "> 0".to_owned() } else { amount(self.map.levels.lowest(level)) };
            let x = x + if level == 0 { 12.0 } else { 0.0 };
            self.text((x, y + 25.0), Style::Plain, Anchor::Middle, &lowest);
        }
        if self.map.strips.iter().any(|strip| strip.outlier.is_some()) {
            let x = start + BOX * COLORS.len() as f64 + 40.0;
            self.fill((x, y + 4.0), (30.0, 4.0), MARK);
            let text = "slower than its peers at this time";
            self.text((x + 38.0, y + 10.0), Style::Mark, Anchor::Start, text);
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

fn fits_on_one_line(strip: &Strip) -> bool {
    let characters = |text: &str| text.chars().count() as f64;
    let name = (characters(&strip.name) + 3.0) * NAME_WIDTH;
    name + characters(&summary(strip)) * TEXT_WIDTH <= RIGHT - LEFT
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
