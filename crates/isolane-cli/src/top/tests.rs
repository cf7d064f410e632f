//! Screens and keys, over a snapshot of a program that does not exist.

use std::ops::ControlFlow;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::panels::View;
use super::screen::{self, Theme};
use super::state::State;
use super::{plain, sample::Sample};

/// View of the last seconds, in which a member of a stripe stalls.
fn view() -> View {
    let sample = Sample { members: 8, steps: 20, stalled: 5, stall: 15..20 };
    View::of_last_steps(sample.snapshot(), 2, 0)
}

fn screen_of(width: u16, height: u16, state: &State, has_color: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let view = view();
    let mut tables = view.tables();
    state.arrange(&mut tables);
    terminal.draw(|frame| screen::draw(frame, Theme { has_color }, state, &view, &tables, None)).unwrap();
    terminal
}

fn press(state: &mut State, keys: &[KeyCode]) {
    for key in keys {
        let mut tables = view().tables();
        state.arrange(&mut tables);
        assert_eq!(state.on_key(KeyEvent::from(*key), &tables), ControlFlow::Continue(()));
    }
}

#[test]
fn small_screen_shows_selected_table() {
    let mut state = State::default();
    insta::assert_snapshot!("volumes_80x24", screen_of(80, 24, &state, true).backend());
    press(&mut state, &[KeyCode::Tab, KeyCode::Char('s'), KeyCode::Char('/')]);
    press(&mut state, &"DISK".chars().map(KeyCode::Char).collect::<Vec<_>>());
    insta::assert_snapshot!("devices_80x24", screen_of(80, 24, &state, true).backend());
}

#[test]
fn large_screen_shows_all_tables() {
    insta::assert_snapshot!("all_200x60", screen_of(200, 60, &State::default(), true).backend());
}

#[test]
fn every_size_is_drawn() {
    for (width, height) in [(1, 1), (20, 3), (80, 24), (79, 39), (500, 200)] {
        for selected in 0..5 {
            let mut state = State::default();
            state.selected = selected;
            screen_of(width, height, &state, true);
        }
    }
}

#[test]
fn no_color_leaves_default_colors() {
    use ratatui::style::Color::Reset;
    let is_plain = |terminal: &Terminal<TestBackend>| {
        terminal.backend().buffer().content().iter().all(|cell| cell.fg == Reset && cell.bg == Reset)
    };
    assert!(is_plain(&screen_of(200, 60, &State::default(), false)));
    assert!(!is_plain(&screen_of(200, 60, &State::default(), true)));
}

#[test]
fn keys_choose_order_filter_and_pause() {
    let mut state = State::default();
    press(&mut state, &[KeyCode::Char('3'), KeyCode::Char(' '), KeyCode::Char('r'), KeyCode::Char('/')]);
    assert!(state.selected == 2 && state.is_paused && state.is_editing);
    press(&mut state, &[KeyCode::Char('q'), KeyCode::Char('x'), KeyCode::Backspace, KeyCode::Enter]);
    assert_eq!((state.filter.as_str(), state.is_editing), ("q", false));
    press(&mut state, &[KeyCode::Char('['), KeyCode::Char('['), KeyCode::Char(']')]);
    assert_eq!(state.skipped, 1);
    press(&mut state, &[KeyCode::Esc, KeyCode::Down, KeyCode::End, KeyCode::Down, KeyCode::Char('p')]);
    assert_eq!((state.filter.as_str(), state.is_paused, state.offsets[2]), ("", false, 3));
    let mut tables = view().tables();
    state.arrange(&mut tables);
    assert!(tables[2].order.descending, "reversed");
    for end in [KeyEvent::from(KeyCode::Char('q')), KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)]
    {
        assert_eq!(state.on_key(end, &tables), ControlFlow::Break(()));
    }
}

#[test]
fn rates_are_those_between_copies() {
    let sample = |steps| Sample { steps, ..Sample::default() }.snapshot();
    let (earlier, later) = (sample(5), sample(7));
    let between = View::between(Some(&earlier), later.clone());
    assert_eq!((between.seconds, between.rates().0), (2.0, 2.0 * 8.0 * 400.0 + 20.0));
    let mut other = earlier;
    other.program.pid += 1;
    assert_eq!(
        View::between(Some(&other), later.clone()).seconds,
        7.0,
        "another process has nothing in common"
    );
    assert_eq!(View::between(Some(&later), sample(5)).seconds, 5.0, "nor has a page of a restarted target");
}

#[test]
fn earlier_steps_have_their_time() {
    let sample = Sample { steps: 20, stall: 5..10, ..Sample::default() };
    let (now, earlier) =
        (View::of_last_steps(sample.snapshot(), 1, 0), View::of_last_steps(sample.snapshot(), 1, 12));
    assert_eq!(now.snapshot.at_unix_ms - earlier.snapshot.at_unix_ms, 12_000);
    let stalls =
        |view: &View| view.numbers.series.iter().filter(|at| at.total.max_bound() > 15_000_000).count();
    assert_eq!((stalls(&now), stalls(&earlier)), (0, 4), "member and stripe on both cores");
    assert_eq!(View::of_last_steps(sample.snapshot(), 1, 999).seconds, 1.0, "the first step");
}

#[test]
fn text_names_slow_device() {
    let text = plain::text(&view(), 160);
    let line = text.lines().find(|line| line.contains("disk5") && line.contains("read")).unwrap();
    assert!(line.contains("20 ms") || line.contains("21 ms") || line.contains("22 ms"), "{line}");
    for title in ["Volumes", "Devices", "Connections", "Cores", "Slow operations"] {
        assert!(text.contains(title), "{title}");
    }
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn text_names_failed_mirror_and_removed_member() {
    let mut view = view();
    view.snapshot.volumes[0].background = Some("failed".to_owned());
    view.snapshot.volumes[5].background = Some("removed".to_owned());
    let text = plain::text(&view, 160);
    let line = |name: &str, state: &str| text.lines().any(|it| it.starts_with(name) && it.contains(state));
    assert!(line("stripe ", "failed") && line("stripe    disk5", "removed"), "{text}");
}
