//! The interactive screen.
//!
//! A thread reads snapshots, so that a program that does not answer delays no key. The terminal is restored at every
//! end: by a key, a signal, an error, or a panic.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use isolane_inspect::source::SourceError;
use isolane_observe::snapshot::Snapshot;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use super::panels::View;
use super::screen::{self, Theme};
use super::state::State;
use crate::failure::{Failure, IoContext};
use crate::signals;

/// Time between two reads.
const INTERVAL: Duration = Duration::from_millis(500);
/// Maximum delay of a signal or of a new snapshot.
const TICK: Duration = Duration::from_millis(50);

/// Next snapshot, or the reason why it is missing.
pub type Answer = Result<Snapshot, SourceError>;

/// Shows the screen until the user or a signal ends it.
pub fn run(first: View, answers: Option<Receiver<Answer>>, window: Duration) -> Result<(), Failure> {
    let mut signals = signals::listen()?;
    let theme = Theme { has_color: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) };
    // Also restores the terminal at a panic.
    let mut terminal = ratatui::try_init().io_context("cannot use the terminal")?;
    let mut top = Top::new(first, window);
    let mut ended_by = None;
    let result = loop {
        if let Err(error) = top.draw(&mut terminal, theme) {
            break Err(error);
        }
        match top.turn(answers.as_ref(), || {
            signals.pending().find(|signal| *signal != signal_hook::consts::SIGUSR1)
        }) {
            Ok(Turn::Continue) => {}
            Ok(Turn::Quit) => break Ok(()),
            Ok(Turn::Signal(signal)) => {
                ended_by = Some(signal);
                break Ok(());
            }
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    result.io_context("cannot use the terminal")?;
    ended_by.map_or(Ok(()), |signal| {
        Err(Failure::new("interrupted", format!("signal {signal}")).by_signal(signal))
    })
}

enum Turn {
    Continue,
    Quit,
    Signal(i32),
}

/// Passes the results of `read` at each interval, until the receiver is gone.
pub fn read_in_thread(mut read: impl FnMut() -> Answer + Send + 'static) -> Receiver<Answer> {
    let (sender, receiver) = sync_channel(1);
    std::thread::spawn(move || {
        let mut next = Instant::now();
        while sender.send(read()).is_ok() {
            next = (next + INTERVAL).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    });
    receiver
}

struct Top {
    state: State,
    view: View,
    /// Snapshots of the last window, the oldest first.
    copies: VecDeque<Snapshot>,
    window: Duration,
    problem: Option<String>,
}

impl Top {
    fn new(view: View, window: Duration) -> Top {
        let copies = VecDeque::from([view.snapshot.clone()]);
        Top { state: State::default(), view, copies, window, problem: None }
    }

    fn draw(&self, terminal: &mut DefaultTerminal, theme: Theme) -> io::Result<()> {
        let mut tables = self.view.tables();
        self.state.arrange(&mut tables);
        let draw = |frame: &mut ratatui::Frame<'_>| {
            screen::draw(frame, theme, &self.state, &self.view, &tables, self.problem.as_deref());
        };
        terminal.draw(draw).map(|_| ())
    }

    /// Waits for a key, a snapshot, or a signal, and handles it.
    fn turn(
        &mut self,
        answers: Option<&Receiver<Answer>>,
        mut signal: impl FnMut() -> Option<i32>,
    ) -> io::Result<Turn> {
        loop {
            if let Some(signal) = signal() {
                return Ok(Turn::Signal(signal));
            }
            match answers.map(Receiver::try_recv) {
                Some(Ok(answer)) => {
                    self.on_answer(answer);
                    return Ok(Turn::Continue);
                }
                Some(Err(TryRecvError::Empty | TryRecvError::Disconnected)) | None => {}
            }
            if event::poll(TICK)? {
                return self.on_event(&event::read()?);
            }
        }
    }

    fn on_event(&mut self, event: &Event) -> io::Result<Turn> {
        let Event::Key(key) = event else { return Ok(Turn::Continue) };
        let mut tables = self.view.tables();
        self.state.arrange(&mut tables);
        let skipped = self.state.skipped;
        if self.state.on_key(*key, &tables).is_break() {
            return Ok(Turn::Quit);
        }
        self.state.skipped = self.state.skipped.min(self.view.snapshot.steps.len().saturating_sub(1));
        if self.state.skipped != skipped {
            let snapshot = std::mem::take(&mut self.view.snapshot);
            self.view = View::of_last_steps(snapshot, self.window.as_secs().max(1), self.state.skipped);
        }
        Ok(Turn::Continue)
    }

    fn on_answer(&mut self, answer: Answer) {
        let snapshot = match answer {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.problem = Some(error.to_string());
                return;
            }
        };
        self.problem = None;
        self.keep_window(&snapshot);
        if !self.state.is_paused {
            self.view = View::between(self.copies.front(), snapshot.clone());
        }
        self.copies.push_back(snapshot);
    }

    /// Drops copies of another process, and all but one that are older than the window.
    fn keep_window(&mut self, snapshot: &Snapshot) {
        self.copies.retain(|copy| copy.program.pid == snapshot.program.pid);
        let window = u64::try_from(self.window.as_millis()).unwrap_or(u64::MAX);
        let is_old = |copy: &Snapshot| copy.at_unix_ms.saturating_add(window) <= snapshot.at_unix_ms;
        while self.copies.get(1).is_some_and(is_old) {
            self.copies.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::top::sample::Sample;

    fn snapshot(steps: u64) -> Snapshot {
        let mut snapshot = Sample { steps, ..Sample::default() }.snapshot();
        snapshot.steps.clear();
        snapshot
    }

    fn top() -> Top {
        Top::new(View::between(None, snapshot(1)), Duration::from_secs(2))
    }

    #[test]
    fn window_moves_with_snapshots() {
        let mut top = top();
        for (steps, seconds) in [(2, 1.0), (3, 2.0), (4, 2.0), (9, 5.0)] {
            top.on_answer(Ok(snapshot(steps)));
            assert_eq!(top.view.seconds, seconds, "{steps}");
        }
        assert_eq!(top.copies.len(), 2, "the last one, and the start of its window");
        let mut other = snapshot(3);
        other.program.pid += 1;
        top.on_answer(Ok(other));
        assert_eq!((top.view.seconds, top.copies.len()), (3.0, 1), "the program was started again");
    }

    #[test]
    fn pause_keeps_the_numbers() {
        let mut top = top();
        top.state.is_paused = true;
        top.on_answer(Ok(snapshot(2)));
        assert_eq!(top.view.snapshot, snapshot(1));
        top.state.is_paused = false;
        top.on_answer(Ok(snapshot(3)));
        assert_eq!(top.view.snapshot, snapshot(3));
        assert_eq!(top.view.seconds, 2.0);
    }

    #[test]
    fn errors_keep_the_numbers() {
        let mut top = top();
        top.on_answer(Err(SourceError::Remote(PathBuf::from("serve-1.sock"))));
        assert!(top.problem.as_ref().is_some_and(|problem| problem.contains("serve-1.sock")));
        assert_eq!(top.view.snapshot, snapshot(1));
        top.on_answer(Ok(snapshot(2)));
        assert_eq!(top.problem, None);
    }
}
