//! All tables as plain text, once.

use std::fmt::Write;

use isolane_inspect::text::{amount, date, time_of_day};

use super::panels::View;
use crate::units::show_bytes;

/// Maximum rows of a table.
const MAX_ROWS: usize = 40;

/// Returns the text, at most `width` columns wide.
pub fn text(view: &View, width: usize) -> String {
    let program = &view.snapshot.program;
    let at = view.snapshot.at_unix_ms;
    let (operations, bytes) = view.rates();
    let mut text = format!(
        "isolane {} {} on {}, {} {} UTC: {} ops/s, {}/s over {:.1} s\n",
        program.name,
        program.pid,
        program.machine,
        date(at),
        time_of_day(at),
        amount(operations),
        show_bytes(bytes),
        view.seconds,
    );
    for mut table in view.tables() {
        table.arrange("", None);
        let rows = table.rows.len();
        table.rows.truncate(MAX_ROWS);
        let (head, lines) = table.lines(width);
        let note = if table.note.is_empty() { String::new() } else { format!("  ({})", table.note) };
        // Writing to a `String` does not fail.
        let _ = writeln!(text, "\n{}{note}", table.title);
        if rows == 0 {
            text += "none\n";
            continue;
        }
        for line in [head].iter().chain(&lines) {
            let line: String = line.iter().map(|(text, _)| text.as_str()).collect();
            let _ = writeln!(text, "{}", line.trim_end());
        }
        if rows > MAX_ROWS {
            let _ = writeln!(text, "{} more", rows - MAX_ROWS);
        }
    }
    text
}
