//! The screen: a header, the tables, and a line of help.

use isolane_inspect::text::{amount, time_of_day};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::panels::{NAMES, View};
use super::state::State;
use super::table::{self, Table, Tone, shortened};
use crate::units::show_bytes;

/// Height from which all tables are on the screen; below, the selected one.
const MIN_HEIGHT_OF_ALL: u16 = 40;
/// Lines of a table above its rows.
const HEAD: usize = 2;

/// Colors, or only bold and reversed text.
#[derive(Clone, Copy, Debug)]
pub struct Theme {
    pub has_color: bool,
}

/// Draws the screen. `problem` is an error of the source.
pub fn draw(
    frame: &mut Frame<'_>,
    theme: Theme,
    state: &State,
    view: &View,
    tables: &[Table; NAMES.len()],
    problem: Option<&str>,
) {
    let area = frame.area();
    let width = usize::from(area.width);
    let mut lines = vec![status(view, state, problem, theme, width), tabs(state, tables, theme)];
    let height = usize::from(area.height).saturating_sub(lines.len() + 1);
    for (at, height) in heights(area.height >= MIN_HEIGHT_OF_ALL, state.selected, tables, height) {
        table_lines(&mut lines, &tables[at], theme, (width, height), state.offsets[at], at == state.selected);
    }
    let last = Rect { y: area.bottom().saturating_sub(1), height: 1.min(area.height), ..area };
    let above = Rect { height: area.height.saturating_sub(1), ..area };
    lines.truncate(usize::from(above.height));
    frame.render_widget(ratatui::text::Text::from(lines), above);
    frame.render_widget(help(state, theme), last);
}

fn status(view: &View, state: &State, problem: Option<&str>, theme: Theme, width: usize) -> Line<'static> {
    let program = &view.snapshot.program;
    let (operations, bytes) = view.rates();
    let text = format!(
        "isolane {} {} on {}  {} UTC  {} ops/s  {}/s  over {:.1} s",
        program.name,
        program.pid,
        program.machine,
        time_of_day(view.snapshot.at_unix_ms),
        amount(operations),
        show_bytes(bytes),
        view.seconds,
    );
    let alert = match problem {
        Some(problem) => Some(problem.to_owned()),
        None => state.is_paused.then(|| "PAUSED".to_owned()),
    };
    let mut spans = Vec::new();
    if let Some(alert) = alert {
        spans.push(Span::styled(shortened(&alert, width), theme.style(Tone::Bad)));
        spans.push(Span::raw("  "));
    }
    spans.push(Span::styled(text, theme.style(Tone::Head)));
    Line::from(spans)
}

fn tabs(state: &State, tables: &[Table; NAMES.len()], theme: Theme) -> Line<'static> {
    let tab = |(at, name): (usize, &&str)| {
        let style = if at == state.selected {
            theme.style(Tone::Head).add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        };
        let text = format!(" {} {name} {} ", at + 1, tables[at].rows.len());
        [Span::styled(text, style), Span::raw(" ")]
    };
    Line::from(NAMES.iter().enumerate().flat_map(tab).collect::<Vec<_>>())
}

fn help(state: &State, theme: Theme) -> Line<'static> {
    if state.is_editing {
        return Line::from(format!("filter: {}_   Enter: keep   Esc: clear", state.filter));
    }
    let keys = "q quit  Tab table  s sort  r reverse  / filter  Space pause  \u{2191}\u{2193} scroll";
    let filter =
        if state.filter.is_empty() { String::new() } else { format!("filter: {} (Esc)  ", state.filter) };
    Line::from(vec![Span::raw(filter), Span::styled(keys, theme.style(Tone::Soft))])
}

/// Returns the tables on the screen and the height of each.
fn heights(all: bool, selected: usize, tables: &[Table], height: usize) -> Vec<(usize, usize)> {
    if !all {
        return vec![(selected, height)];
    }
    let wanted = |at: usize| HEAD + tables[at].rows.len().max(1) + 1;
    let fair = height / tables.len();
    let mut heights: Vec<(usize, usize)> = (0..tables.len()).map(|at| (at, wanted(at).min(fair))).collect();
    let mut spare = height.saturating_sub(heights.iter().map(|(_, height)| height).sum());
    for at in [selected].into_iter().chain(0..tables.len()) {
        let more = wanted(at).saturating_sub(heights[at].1).min(spare);
        heights[at].1 += more;
        spare -= more;
    }
    heights
}

fn table_lines(
    lines: &mut Vec<Line<'static>>,
    table: &Table,
    theme: Theme,
    (width, height): (usize, usize),
    offset: usize,
    is_selected: bool,
) {
    let (head, rows) = table.lines(width);
    // One empty line after each table.
    let space = height.saturating_sub(HEAD + 1);
    let offset = offset.min(rows.len().saturating_sub(space));
    let hidden = rows.len().saturating_sub(offset + space);
    let more = if hidden > 0 { format!("  {hidden} more below") } else { String::new() };
    let title = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    let title = if is_selected { title } else { Style::new().add_modifier(Modifier::BOLD) };
    let note = shortened(&format!("  {}{more}", table.note), width.saturating_sub(table.title.len()));
    let end = lines.len() + height;
    lines.push(Line::from(vec![
        Span::styled(table.title, title),
        Span::styled(note, theme.style(Tone::Soft)),
    ]));
    lines.push(theme.line(head));
    if rows.is_empty() {
        lines.push(Line::from(Span::styled("none", theme.style(Tone::Soft))));
    }
    lines.extend(rows.into_iter().skip(offset).take(space).map(|row| theme.line(row)));
    lines.resize(end, Line::default());
}

impl Theme {
    fn line(self, line: table::Line) -> Line<'static> {
        Line::from(
            line.into_iter().map(|(text, tone)| Span::styled(text, self.style(tone))).collect::<Vec<_>>(),
        )
    }

    fn style(self, tone: Tone) -> Style {
        let style = Style::new();
        match tone {
            Tone::Plain => style,
            Tone::Head => style.add_modifier(Modifier::BOLD),
            Tone::Soft if self.has_color => style.fg(Color::DarkGray),
            Tone::Soft => style,
            Tone::Warn if self.has_color => style.fg(Color::Yellow).add_modifier(Modifier::BOLD),
            Tone::Warn => style.add_modifier(Modifier::BOLD),
            Tone::Bad if self.has_color => style.fg(Color::Red).add_modifier(Modifier::BOLD),
            Tone::Bad => style.add_modifier(Modifier::BOLD | Modifier::REVERSED),
            Tone::Part(part) if self.has_color => style.fg(Color::Black).bg(PARTS[part % PARTS.len()]),
            Tone::Part(_) => style,
        }
    }
}

/// Colors of the parts of bars.
const PARTS: [Color; 10] = [
    Color::Gray,
    Color::LightMagenta,
    Color::LightBlue,
    Color::LightRed,
    Color::DarkGray,
    Color::Yellow,
    Color::Cyan,
    Color::LightGreen,
    Color::Green,
    Color::Magenta,
];
