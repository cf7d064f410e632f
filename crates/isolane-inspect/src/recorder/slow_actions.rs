//! Actions for devices that are slower than their peers.
//!
//! Invariant: no action is taken on the data path. At most one member of a mirror is avoided, which the mirror ensures.

use std::collections::BTreeMap;

use isolane_observe::peers::Level;

use super::slow_devices::DeviceState;
use crate::program::OnSlow;
use crate::text::shown_name;

/// Seconds for which reads avoid a member at first, and the most after repeated tries.
const AVOIDED_S: f64 = 60.0;
const MAX_AVOIDED_S: f64 = 960.0;
/// Seconds for which reads use it again: more than the 30 windows after which a level ends.
const TRY_S: f64 = 45.0;
/// Maximum characters of a name.
const MAX_NAME: usize = 80;

/// What has been done about slow devices, by their first volume.
#[derive(Debug)]
pub struct SlowActions {
    on_slow: OnSlow,
    levels: BTreeMap<u32, Level>,
    avoided: BTreeMap<u32, Avoided>,
}

/// A device that reads avoid, or that they try again.
#[derive(Debug, Default)]
struct Avoided {
    is_avoided: bool,
    /// Seconds until this changes.
    remaining_s: f64,
    /// Seconds for which it was avoided last.
    length_s: f64,
}

/// Line for the log.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// Whether a device became slow.
    pub is_warning: bool,
    /// The text.
    pub text: String,
}

impl SlowActions {
    /// Returns actions for devices that are fine so far.
    pub fn new(on_slow: OnSlow) -> SlowActions {
        SlowActions { on_slow, levels: BTreeMap::new(), avoided: BTreeMap::new() }
    }

    /// Takes the actions for the states after a step of this length, and returns lines for the log. `avoid` lets reads
    /// avoid a volume, or ends that, and returns `false` if they cannot.
    pub fn apply(
        &mut self,
        states: &[DeviceState],
        seconds: f64,
        avoid: impl Fn(u32, bool) -> bool,
    ) -> Vec<Line> {
        // A device that is gone is released.
        let known = |volume: &u32| states.iter().any(|state| state.id == *volume);
        self.levels.retain(|volume, _| known(volume));
        self.avoided.retain(|volume, at| {
            let is_known = known(volume);
            if at.is_avoided && !is_known {
                avoid(*volume, false);
            }
            is_known
        });
        let mut lines = Vec::new();
        for state in states {
            let before = self.levels.insert(state.id, state.level).unwrap_or_default();
            if self.on_slow.log && before != state.level {
                lines.push(level_line(state));
            }
            if self.on_slow.avoid {
                lines.extend(self.avoid(state, seconds, &avoid));
            }
        }
        lines
    }

    fn avoid(
        &mut self,
        state: &DeviceState,
        seconds: f64,
        avoid: &impl Fn(u32, bool) -> bool,
    ) -> Option<Line> {
        let is_slow = state.level == Level::Slow;
        if !is_slow && !self.avoided.contains_key(&state.id) {
            return None;
        }
        let avoided = self.avoided.entry(state.id).or_default();
        avoided.remaining_s -= seconds;
        if avoided.remaining_s > 0.0 {
            return None;
        }
        if !is_slow && !avoided.is_avoided {
            self.avoided.remove(&state.id);
            return None;
        }
        avoided.is_avoided = !avoided.is_avoided;
        avoided.remaining_s = TRY_S;
        if avoided.is_avoided {
            avoided.length_s = (avoided.length_s * 2.0).clamp(AVOIDED_S, MAX_AVOIDED_S);
            avoided.remaining_s = avoided.length_s;
        }
        if !avoid(state.id, avoided.is_avoided) {
            return None;
        }
        let name = shown_name(&state.volume, MAX_NAME);
        let text = if avoided.is_avoided {
            format!("{name}: reads avoid it for {} s (--on-slow avoid)", avoided.length_s)
        } else {
            format!("{name}: reads use it again")
        };
        Some(Line { is_warning: false, text })
    }
}

/// Describes the level of a device.
fn level_line(state: &DeviceState) -> Line {
    let name = shown_name(&state.volume, MAX_NAME);
    let ratio = state.ratios.into_iter().flatten().reduce(f64::max);
    let ratio = ratio.map(|ratio| format!(" ({ratio:.1}x)")).unwrap_or_default();
    let text = match state.level {
        Level::Fine => format!("{name}: no longer slower than its peers"),
        Level::Suspect => format!("{name}: may be slower than its peers{ratio}"),
        Level::Slow => format!("{name}: slower than its peers{ratio}; run `isolane explain`"),
    };
    Line { is_warning: state.level == Level::Slow, text }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn state(level: Level) -> DeviceState {
        DeviceState { volume: "v2".into(), id: 2, disk: None, level, ratios: [Some(4.2), None, None] }
    }

    #[test]
    fn reports_each_change_of_level_once() {
        let mut actions = SlowActions::new(OnSlow::default());
        let mut texts = Vec::new();
        for level in [Level::Fine, Level::Suspect, Level::Suspect, Level::Slow, Level::Slow, Level::Fine] {
            let lines = actions.apply(&[state(level)], 1.0, |_, _| panic!("not requested"));
            texts.extend(lines.into_iter().map(|line| (line.is_warning, line.text)));
        }
        let expected = [
            (false, "v2: may be slower than its peers (4.2x)"),
            (true, "v2: slower than its peers (4.2x); run `isolane explain`"),
            (false, "v2: no longer slower than its peers"),
        ];
        assert_eq!(texts, expected.map(|(is_warning, text)| (is_warning, text.to_owned())));
    }

    #[test]
    fn avoids_slow_member_and_tries_it_again() {
        let mut actions = SlowActions::new(OnSlow { log: false, avoid: true, ..OnSlow::default() });
        let changes = RefCell::new(Vec::new());
        let mut second = 0;
        let mut run = |level: Level, seconds: u32| {
            for _ in 0..seconds {
                second += 1;
                actions.apply(&[state(level)], 1.0, |volume, is_avoided| {
                    assert_eq!(volume, 2);
                    changes.borrow_mut().push((second, is_avoided));
                    true
                });
            }
            std::mem::take(&mut *changes.borrow_mut())
        };
        assert_eq!(run(Level::Suspect, 10), []);
        assert_eq!(run(Level::Slow, 30), [(11, true)]);
        // Without reads, the rule finds no difference.
        assert_eq!(run(Level::Fine, 40), [(71, false)]);
        assert_eq!(run(Level::Slow, 145), [(116, true)], "twice as long");
        assert_eq!(run(Level::Fine, 115), [(236, false)]);
        assert_eq!(run(Level::Slow, 61), [(341, true), (401, false)], "as at first");
    }

    #[test]
    fn releases_avoided_device_that_is_gone() {
        let mut actions = SlowActions::new(OnSlow { log: false, avoid: true, ..OnSlow::default() });
        let changes = RefCell::new(Vec::new());
        let avoid = |volume: u32, is_avoided: bool| {
            changes.borrow_mut().push((volume, is_avoided));
            true
        };
        actions.apply(&[state(Level::Slow)], 1.0, avoid);
        actions.apply(&[], 1.0, avoid);
        actions.apply(&[], 1.0, avoid);
        assert_eq!(*changes.borrow(), [(2, true), (2, false)]);
    }

    #[test]
    fn device_without_mirror_is_not_reported_as_avoided() {
        let mut actions = SlowActions::new(OnSlow { log: false, avoid: true, ..OnSlow::default() });
        assert_eq!(actions.apply(&[state(Level::Slow)], 1.0, |_, _| false), []);
    }
}
