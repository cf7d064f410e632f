//! Locate lights at the slots of slow devices.
//!
//! Each slot has a thread for its light, so that a slot that hangs delays no other slot.
//!
//! Invariant: only a light that was off is switched on, and only such a light is switched off again. An interface that
//! cannot read its lights (`ledctl`) is the exception.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use isolane_observe::peers::Level;
use isolane_observe::snapshot::Snapshot;

use super::slow_actions::Line;
use super::slow_devices::DeviceState;
use crate::light::{Drive, Light, LightError, Pending, Slot, Writer, find};
use crate::system::Root;
use crate::text::shown_name;

/// Longest time for all lights to go off at the end of the program: the pause of a slot and the limit of NPEM.
pub const END_LIMIT: Duration = Duration::from_secs(10);
/// Maximum characters of a name.
const MAX_NAME: usize = 80;

type Start = Box<dyn Fn() -> io::Result<Writer> + Send>;

/// The lights that are on because a device is slow.
pub struct SlowLights {
    start: Start,
    /// Slots of slow devices, by the first volume of the device. `None` if there is no slot.
    slots: BTreeMap<u32, Option<Slot>>,
    /// Devices whose missing light is in the log.
    reported: BTreeSet<u32>,
    /// Lights by the name of the slot, each with its thread.
    lamps: BTreeMap<String, Lamp>,
}

struct Lamp {
    writer: Writer,
    slot: Slot,
    /// Name of the first device that needed the light.
    device: String,
    state: State,
}

enum State {
    /// Off, or not ours.
    Idle,
    /// Reads whether the light is already on.
    Reads(Pending<Option<Vec<Light>>>),
    /// On, or about to be.
    On(Option<Pending<()>>),
    /// About to be off.
    Ends(Pending<()>),
    /// Unchanged, because the light was on, or failed.
    Left,
}

impl SlowLights {
    /// Returns lights that are all off so far.
    pub fn new() -> SlowLights {
        SlowLights::with_writers(|| Writer::start(Root::system()?))
    }

    fn with_writers(start: impl Fn() -> io::Result<Writer> + Send + 'static) -> SlowLights {
        SlowLights {
            start: Box::new(start),
            slots: BTreeMap::new(),
            reported: BTreeSet::new(),
            lamps: BTreeMap::new(),
        }
    }

    /// Switches on the lights of devices that became slow, and switches off the lights of others. Waits for no light.
    /// Returns lines for the log.
    pub fn apply(&mut self, root: &Root, states: &[DeviceState], snapshot: &Snapshot) -> Vec<Line> {
        let slow: Vec<&DeviceState> = states.iter().filter(|state| state.level == Level::Slow).collect();
        self.slots.retain(|id, _| slow.iter().any(|state| state.id == *id));
        self.reported.retain(|id| states.iter().any(|state| state.id == *id));
        let mut lines = Vec::new();
        let mut needed = BTreeSet::new();
        for state in slow {
            if !self.slots.contains_key(&state.id) {
                let found = self.add(root, state, snapshot);
                let is_new = found.is_ok() || self.reported.insert(state.id);
                lines.extend(found.as_ref().err().filter(|_| is_new).map(|error| no_light(state, error)));
                self.slots.insert(state.id, found.ok());
            }
            needed.extend(self.slots.get(&state.id).into_iter().flatten().map(Slot::to_string));
        }
        for (name, lamp) in &mut self.lamps {
            lines.extend(lamp.step(needed.contains(name)));
        }
        lines
    }

    /// Finds the slot of a device, and starts the thread for its light.
    fn add(&mut self, root: &Root, state: &DeviceState, snapshot: &Snapshot) -> Result<Slot, String> {
        let volume = snapshot.volumes.iter().find(|volume| volume.id == state.id);
        let volume = volume.ok_or("the volume has vanished")?;
        let drive = Drive::of_volume(root, snapshot, volume).map_err(|error| match error {
            LightError::NoDrive(_) => "not on a drive of this machine".to_owned(),
            error => error.to_string(),
        })?;
        let slot = find(root, &drive).map_err(|error| error.to_string())?;
        if !slot.lights().contains(&Light::Locate) {
            return Err(format!("{slot} has no locate light"));
        }
        if !self.lamps.contains_key(&slot.to_string()) {
            let writer = (self.start)().map_err(|error| format!("cannot start a thread: {error}"))?;
            let device = shown_name(&state.volume, MAX_NAME);
            let lamp = Lamp { writer, slot: slot.clone(), device, state: State::Idle };
            self.lamps.insert(slot.to_string(), lamp);
        }
        Ok(slot)
    }

    /// Switches all lights off, and waits for at most `limit`. Returns lines for the log.
    pub fn end(self, limit: Duration) -> Vec<Line> {
        let deadline = Instant::now() + limit;
        let mut lines = Vec::new();
        let mut lamps: Vec<Lamp> = self.lamps.into_values().collect();
        // All start before the first wait.
        lamps.iter_mut().for_each(|lamp| lines.extend(lamp.step(false)));
        for lamp in lamps {
            let State::Ends(pending) = &lamp.state else { continue };
            let result = pending.wait_for(deadline.saturating_duration_since(Instant::now()));
            // The limit is of all lights together.
            lines.push(lamp.ended(result.map_err(|error| match error {
                LightError::NoResponse { slot, .. } => LightError::NoResponse { slot, limit },
                error => error,
            })));
        }
        lines
    }
}

impl Lamp {
    fn step(&mut self, is_needed: bool) -> Option<Line> {
        match &self.state {
            State::Idle if is_needed => {
                self.state = State::Reads(self.writer.read(&self.slot));
                None
            }
            State::Idle => None,
            State::Left | State::Reads(_) if !is_needed => {
                self.state = State::Idle;
                None
            }
            State::Left => None,
            State::Reads(pending) => {
                let result = pending.poll()?;
                self.light(result)
            }
            State::On(_) if !is_needed => {
                self.state = State::Ends(self.writer.set(&self.slot, Light::Locate, false));
                None
            }
            State::On(pending) => {
                let result = pending.as_ref()?.poll()?;
                self.lit(result)
            }
            State::Ends(pending) => {
                let result = pending.poll()?;
                self.state = State::Idle;
                Some(self.ended(result))
            }
        }
    }

    /// Switches the light on if it is off.
    fn light(&mut self, read: Result<Option<Vec<Light>>, LightError>) -> Option<Line> {
        self.state = State::Left;
        match read {
            Err(error) => Some(self.line(true, &error.to_string())),
            Ok(Some(lights)) if lights.contains(&Light::Locate) => {
                Some(self.line(false, &format!("the locate light of {} is already on", self.slot)))
            }
            Ok(_) => {
                self.state = State::On(Some(self.writer.set(&self.slot, Light::Locate, true)));
                None
            }
        }
    }

    fn lit(&mut self, result: Result<(), LightError>) -> Option<Line> {
        // A write without a result can still switch the light on.
        let is_on = matches!(result, Ok(()) | Err(LightError::NoResponse { .. }));
        self.state = if is_on { State::On(None) } else { State::Left };
        Some(match result {
            Ok(()) => self.line(false, &format!("switched on the locate light of {}", self.slot)),
            Err(error) => self.line(true, &error.to_string()),
        })
    }

    fn ended(&self, result: Result<(), LightError>) -> Line {
        match result {
            Ok(()) => self.line(false, &format!("switched off the locate light of {}", self.slot)),
            Err(error) => self.line(true, &format!("the locate light can still be on: {error}")),
        }
    }

    fn line(&self, is_warning: bool, text: &str) -> Line {
        Line { is_warning, text: format!("{}: {text} (--on-slow light)", self.device) }
    }
}

fn no_light(state: &DeviceState, error: &str) -> Line {
    let name = shown_name(&state.volume, MAX_NAME);
    Line { is_warning: true, text: format!("{name}: no light (--on-slow light): {error}") }
}

#[cfg(test)]
mod tests;
