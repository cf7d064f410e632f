//! Choices of the user: table, order, filter, and pause.

use std::ops::ControlFlow;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::panels::NAMES;
use super::table::{Order, Table};

/// Maximum length of a filter.
const MAX_FILTER: usize = 60;

/// Choices of the user.
#[derive(Debug, Default)]
pub struct State {
    /// Position in [`NAMES`].
    pub selected: usize,
    /// Chosen order of each table.
    orders: [Option<Order>; NAMES.len()],
    /// First row of each table.
    pub offsets: [usize; NAMES.len()],
    pub filter: String,
    /// The user is writing the filter.
    pub is_editing: bool,
    pub is_paused: bool,
    /// Steps of a file after those on the screen.
    pub skipped: usize,
}

impl State {
    /// Sorts and filters the tables.
    pub fn arrange(&self, tables: &mut [Table; NAMES.len()]) {
        for (table, order) in tables.iter_mut().zip(self.orders) {
            table.arrange(&self.filter, order);
        }
    }

    /// Handles a key; breaks at the end of the program. `tables` are on the screen.
    pub fn on_key(&mut self, key: KeyEvent, tables: &[Table; NAMES.len()]) -> ControlFlow<()> {
        if key.kind == KeyEventKind::Release {
            return ControlFlow::Continue(());
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            };
        }
        if self.is_editing {
            self.edit(key.code);
            return ControlFlow::Continue(());
        }
        let table = &tables[self.selected];
        match key.code {
            KeyCode::Char('q') => return ControlFlow::Break(()),
            KeyCode::Char(digit @ '1'..='5') => self.selected = digit as usize - '1' as usize,
            KeyCode::Tab | KeyCode::Right => self.selected = (self.selected + 1) % NAMES.len(),
            KeyCode::BackTab | KeyCode::Left => {
                self.selected = (self.selected + NAMES.len() - 1) % NAMES.len()
            }
            KeyCode::Char('s') => self.orders[self.selected] = Some(table.next_order()),
            KeyCode::Char('r') => {
                let Order { column, descending } = table.order;
                self.orders[self.selected] = Some(Order { column, descending: !descending });
            }
            KeyCode::Char('/') => self.is_editing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char(' ' | 'p') => self.is_paused = !self.is_paused,
            KeyCode::Char('[') => self.skipped = self.skipped.saturating_add(1),
            KeyCode::Char(']') => self.skipped = self.skipped.saturating_sub(1),
            code => self.scroll(code, table.rows.len()),
        }
        ControlFlow::Continue(())
    }

    fn edit(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_editing = false,
            KeyCode::Esc => {
                self.is_editing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(char) if self.filter.chars().count() < MAX_FILTER => self.filter.push(char),
            _ => {}
        }
    }

    fn scroll(&mut self, code: KeyCode, rows: usize) {
        let offset = &mut self.offsets[self.selected];
        *offset = match code {
            KeyCode::Up => offset.saturating_sub(1),
            KeyCode::Down => *offset + 1,
            KeyCode::PageUp => offset.saturating_sub(10),
            KeyCode::PageDown => *offset + 10,
            KeyCode::Home => 0,
            KeyCode::End => rows,
            _ => *offset,
        };
        *offset = (*offset).min(rows.saturating_sub(1));
    }
}
