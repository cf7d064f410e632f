//! Tables of `isolane top`, independent of the screen: sorted, filtered, and fitted to a width.

use std::cmp::Ordering;

use isolane_inspect::text::shown_name;
use ratatui::text::Span;

/// A table.
#[derive(Debug, Default)]
pub struct Table {
    pub title: &'static str,
    /// Text next to the title.
    pub note: String,
    pub columns: &'static [Column],
    pub rows: Vec<Vec<Cell>>,
    /// Order until the user chooses another one.
    pub order: Order,
}

/// A column.
#[derive(Debug)]
pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
    /// Columns with the highest rank are left out first if the width is too small; columns of rank 0 are kept.
    pub rank: u8,
}

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Left; shortened if the width is too small.
    Text,
    /// Right.
    Number,
    /// A bar over the remaining width.
    Bar,
}

/// A cell: its text or bar, and its place in the order.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    key: Key,
    tone: Tone,
    /// Letters of a bar, their share, and their color.
    bar: Vec<(char, f64, usize)>,
}

#[derive(Clone, Debug)]
enum Key {
    Number(f64),
    Text(String),
}

/// Emphasis of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    /// Headers.
    Head,
    Soft,
    /// Worth a look.
    Warn,
    Bad,
    /// Part of a bar, by its color.
    Part(usize),
}

/// Column of the order, and its direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    pub column: usize,
    pub descending: bool,
}

/// Texts of one line with their emphasis.
pub type Line = Vec<(String, Tone)>;

impl Cell {
    /// Returns a text, without characters that control a terminal.
    pub fn text(text: impl AsRef<str>) -> Cell {
        let text = shown_name(text.as_ref(), MAX_NAME);
        Cell { key: Key::Text(text.to_lowercase()), text, tone: Tone::Plain, bar: Vec::new() }
    }

    /// Returns a number with its text.
    pub fn number(number: f64, text: impl Into<String>) -> Cell {
        Cell { text: text.into(), key: Key::Number(number), tone: Tone::Plain, bar: Vec::new() }
    }

    /// Returns a cell without a value.
    pub fn none() -> Cell {
        Cell::number(f64::NEG_INFINITY, "-").with_tone(Tone::Soft)
    }

    /// Returns a bar of letters, their shares, and their colors.
    pub fn bar(parts: Vec<(char, f64, usize)>) -> Cell {
        Cell { text: String::new(), key: Key::Number(0.0), tone: Tone::Plain, bar: parts }
    }

    /// Sets the emphasis.
    pub fn with_tone(self, tone: Tone) -> Cell {
        Cell { tone, ..self }
    }

    fn compare(&self, other: &Cell) -> Ordering {
        match (&self.key, &other.key) {
            (Key::Number(one), Key::Number(two)) => one.total_cmp(two),
            (Key::Text(one), Key::Text(two)) => one.cmp(two),
            (Key::Number(_), Key::Text(_)) => Ordering::Less,
            (Key::Text(_), Key::Number(_)) => Ordering::Greater,
        }
    }
}

impl Table {
    /// Keeps rows with a cell that contains `filter`, in lower or upper case, and sorts them.
    pub fn arrange(&mut self, filter: &str, order: Option<Order>) {
        let filter = filter.to_lowercase();
        self.rows.retain(|row| row.iter().any(|cell| cell.text.to_lowercase().contains(&filter)));
        self.order = order.unwrap_or(self.order);
        let Order { column, descending } = self.order;
        self.rows.sort_by(|one, two| {
            let order = one[column].compare(&two[column]);
            if descending { order.reverse() } else { order }
        });
    }

    /// Returns the order by the next column that has one.
    pub fn next_order(&self) -> Order {
        let count = self.columns.len();
        let next = (1..=count).map(|step| (self.order.column + step) % count);
        let column = next.into_iter().find(|column| self.columns[*column].kind != Kind::Bar).unwrap_or(0);
        Order { column, descending: self.columns[column].kind == Kind::Number }
    }

    /// Returns the header and the rows, each at most `width` wide.
    pub fn lines(&self, width: usize) -> (Line, Vec<Line>) {
        let widths = self.widths(width);
        let shown = || widths.iter().filter(|(_, width)| *width > 0);
        let head = shown().map(|(column, width)| {
            let Column { name, kind, .. } = &self.columns[*column];
            let mark = match self.order {
                order if order.column != *column => "",
                Order { descending: true, .. } => "▼",
                _ => "▲",
            };
            vec![(fitted(&format!("{name}{mark}"), *width, *kind), Tone::Head)]
        });
        let row = |row: &Vec<Cell>| {
            joined(shown().map(|(column, width)| row[*column].fitted(*width, self.columns[*column].kind)))
        };
        (joined(head), self.rows.iter().map(row).collect())
    }

    /// Returns the widths of the columns that fit.
    fn widths(&self, width: usize) -> Vec<(usize, usize)> {
        let mut widths: Vec<(usize, usize)> =
            (0..self.columns.len()).map(|at| (at, self.wanted(at))).collect();
        let used = |widths: &[(usize, usize)]| widths.iter().map(|(_, width)| width + 1).sum::<usize>();
        while used(&widths) > width + 1 {
            let excess = used(&widths) - width - 1;
            if self.shorten(&mut widths, excess) {
                break;
            }
            let least = (0..widths.len()).max_by_key(|at| (self.columns[widths[*at].0].rank, *at));
            match least {
                Some(least) if self.columns[widths[least].0].rank > 0 => _ = widths.remove(least),
                _ => break,
            }
        }
        let spare = (width + 1).saturating_sub(used(&widths));
        if let Some((_, bar)) = widths.iter_mut().find(|(at, _)| self.columns[*at].kind == Kind::Bar) {
            *bar += spare.min(MAX_BAR - MIN_BAR);
        }
        widths
    }

    /// Makes the widest text shorter by `excess` if it stays readable.
    fn shorten(&self, widths: &mut [(usize, usize)], excess: usize) -> bool {
        let texts = widths.iter_mut().filter(|(at, _)| self.columns[*at].kind == Kind::Text);
        match texts.max_by_key(|(_, width)| *width) {
            Some((_, width)) if *width >= MIN_TEXT + excess => {
                *width -= excess;
                true
            }
            _ => false,
        }
    }

    fn wanted(&self, column: usize) -> usize {
        let Column { name, kind, .. } = &self.columns[column];
        let cells = self.rows.iter().map(|row| width_of(&row[column].text)).max().unwrap_or(0);
        let name = width_of(name) + usize::from(self.order.column == column);
        match kind {
            Kind::Bar => MIN_BAR,
            Kind::Text => cells.max(name).min(MAX_TEXT),
            Kind::Number => cells.max(name),
        }
    }
}

impl Cell {
    fn fitted(&self, width: usize, kind: Kind) -> Line {
        if kind != Kind::Bar {
            return vec![(fitted(&self.text, width, kind), self.tone)];
        }
        let mut line: Line = Vec::new();
        let mut done = 0.0;
        let mut filled = 0;
        for (letter, share, color) in &self.bar {
            done += share;
            let end = ((done * width as f64).round() as usize).clamp(filled, width);
            line.push((letter.to_string().repeat(end - filled), Tone::Part(*color)));
            filled = end;
        }
        line.push((" ".repeat(width - filled), Tone::Plain));
        line.retain(|(text, _)| !text.is_empty());
        line
    }
}

fn joined(cells: impl Iterator<Item = Line>) -> Line {
    let mut line = Line::new();
    for cell in cells {
        if !line.is_empty() {
            line.push((" ".to_owned(), Tone::Plain));
        }
        line.extend(cell);
    }
    line
}

/// Returns a text of exactly `width` columns.
fn fitted(text: &str, width: usize, kind: Kind) -> String {
    let text = shortened(text, width);
    let padding = " ".repeat(width - width_of(&text));
    if kind == Kind::Number { padding + &text } else { text + &padding }
}

/// Returns a text of at most `width` columns: its start and its end, because the names of hosts start alike.
pub fn shortened(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let shown = width.saturating_sub(1);
    let start = prefix(text.chars(), shown / 2);
    let end: String = prefix(text.chars().rev(), shown - width_of(&start)).chars().rev().collect();
    if width > 0 { format!("{start}…{end}") } else { String::new() }
}

/// Returns the first characters, at most `width` columns.
fn prefix(chars: impl Iterator<Item = char>, width: usize) -> String {
    let mut prefix = String::new();
    for char in chars {
        if width_of(&prefix) + width_of(char.encode_utf8(&mut [0; 4])) > width {
            break;
        }
        prefix.push(char);
    }
    prefix
}

/// Returns the number of columns of a terminal that a text takes.
pub fn width_of(text: &str) -> usize {
    Span::raw(text).width()
}

/// Limit for a text in characters.
const MAX_NAME: usize = 200;
const MIN_TEXT: usize = 14;
const MAX_TEXT: usize = 60;
const MIN_BAR: usize = 12;
const MAX_BAR: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column { name: "name", kind: Kind::Text, rank: 0 },
        Column { name: "ops/s", kind: Kind::Number, rank: 0 },
        Column { name: "note", kind: Kind::Text, rank: 2 },
        Column { name: "stages", kind: Kind::Bar, rank: 1 },
    ];

    fn table() -> Table {
        let row = |name: &str, rate: f64| {
            let bar = Cell::bar(vec![('d', 0.75, 0), ('s', 0.25, 1)]);
            vec![Cell::text(name), Cell::number(rate, format!("{rate}")), Cell::text("a note"), bar]
        };
        let rows = vec![row("disk1", 5.0), row("Disk2", 100.0), row("log", 20.0)];
        Table {
            title: "t",
            columns: COLUMNS,
            rows,
            order: Order { column: 1, descending: true },
            ..Table::default()
        }
    }

    fn plain(line: &Line) -> String {
        line.iter().map(|(text, _)| text.as_str()).collect()
    }

    #[test]
    fn sorts_by_number_or_text() {
        let mut table = table();
        let names = |table: &Table| table.rows.iter().map(|row| row[0].text.clone()).collect::<Vec<_>>();
        table.arrange("", None);
        assert_eq!(names(&table), ["Disk2", "log", "disk1"]);
        table.arrange("", Some(Order::default()));
        assert_eq!(names(&table), ["disk1", "Disk2", "log"]);
        assert_eq!(table.next_order(), Order { column: 1, descending: true });
        table.order = Order { column: 2, descending: false };
        assert_eq!(table.next_order(), Order::default(), "bars have no order");
    }

    #[test]
    fn filters_in_any_case() {
        let mut table = table();
        table.arrange("DISK", None);
        assert_eq!(table.rows.len(), 2);
    }

    #[test]
    fn lines_fit_every_width() {
        let mut table = table();
        table.rows.push(vec![
            Cell::text("日本語の名前".repeat(4)),
            Cell::none(),
            Cell::none(),
            Cell::bar(vec![]),
        ]);
        for width in 24..120 {
            let (head, rows) = table.lines(width);
            for line in rows.iter().chain([&head]) {
                let shown = plain(line);
                assert!(width_of(&shown) <= width, "{width}: {shown:?}");
            }
            assert!(plain(&head).contains("ops/s▼"), "{width}");
        }
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shortened("nqn.2014-08.org:host7", 12), "nqn.2…:host7");
        assert_eq!([shortened("日本語", 3), shortened("abc", 1), shortened("abc", 0)], ["…語", "…", ""]);
    }

    #[test]
    fn bars_show_shares() {
        let (_, rows) = table().lines(45);
        assert!(plain(&rows[0]).contains("dddddddddd"), "{:?}", plain(&rows[0]));
        let bar = Cell::bar(vec![('d', 0.75, 0), ('s', 0.25, 1)]).fitted(8, Kind::Bar);
        assert_eq!(bar, [("dddddd".to_owned(), Tone::Part(0)), ("ss".to_owned(), Tone::Part(1))]);
    }
}
