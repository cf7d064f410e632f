//! The recorder: a side thread that keeps the last five minutes, and observes turns that take too long.
//!
//! Each second, [`run`] adds a step with the differences of all numbers and readings of the system. While a core works,
//! it also wakes every 10 ms to compare turns; otherwise once a second.
//!
//! Invariant: the memory of the steps is bounded, and no error or panic of this thread affects I/O.

mod connections;
mod devices;
mod disks;
mod readings;
mod slow_actions;
mod slow_devices;
mod slow_lights;
mod sock_diag;
mod steps;
mod stuck;
mod tasks;
mod throttle;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use isolane_observe::snapshot::{Numbers, Snapshot, Step};

pub(crate) use self::connections::Connections;
pub(crate) use self::devices::Devices;
pub(crate) use self::slow_devices::{DeviceState, SlowDevices};
pub(crate) use self::slow_lights::END_LIMIT;
pub(crate) use self::steps::Steps;

use self::readings::Readings;
use self::slow_actions::{Line, SlowActions};
use self::slow_lights::SlowLights;
use self::stuck::Watch;
use crate::document::Document;
use crate::placement;
use crate::program::OnSlow;

/// Length of a step.
const STEP: Duration = Duration::from_secs(1);

/// Records until `stop` is dropped, and then switches off lights for at most [`END_LIMIT`].
pub(crate) fn run(document: &Document, on_slow: OnSlow, stop: &Receiver<()>) {
    placement::avoid(document.cpus());
    let mut recorder = Recorder::new(document, on_slow);
    let mut next_step = Instant::now() + STEP;
    let mut pause = STEP;
    loop {
        let until_step = next_step.saturating_duration_since(Instant::now());
        if stop.recv_timeout(pause.min(until_step)) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        let turned = catch_unwind(AssertUnwindSafe(|| {
            let is_working = recorder.watch(document);
            if Instant::now() >= next_step {
                recorder.step(document);
            }
            is_working
        }));
        // The message of a panic is on stderr.
        pause = if turned.unwrap_or(false) { stuck::INTERVAL } else { STEP };
        let now = Instant::now();
        if now >= next_step {
            next_step = (next_step + STEP).max(now);
        }
    }
    log_lines(recorder.slow_lights.map(|lights| lights.end(END_LIMIT)).unwrap_or_default());
}

fn log_lines(lines: Vec<Line>) {
    for line in lines {
        if line.is_warning {
            log::warn!("{}", line.text);
        } else {
            log::info!("{}", line.text);
        }
    }
}

struct Recorder {
    readings: Readings,
    watch: Watch,
    slow_actions: SlowActions,
    /// Lights of slow devices, if requested.
    slow_lights: Option<SlowLights>,
    /// Numbers at the end of the last step, and the time of their copy.
    last: (Numbers, Instant),
}

impl Recorder {
    fn new(document: &Document, on_slow: OnSlow) -> Recorder {
        let mut readings = Readings::new(document.root());
        let snapshot = document.snapshot();
        readings.read(document.root(), &snapshot, &Numbers::default());
        Recorder {
            readings,
            watch: Watch::default(),
            slow_actions: SlowActions::new(on_slow),
            slow_lights: on_slow.light.then(SlowLights::new),
            last: (snapshot.numbers, Instant::now()),
        }
    }

    /// Compares turns. Returns `true` if a core works.
    fn watch(&mut self, document: &Document) -> bool {
        let turns = document.turns();
        self.watch.check(document.root(), &turns, Instant::now(), &mut document.stuck())
    }

    fn step(&mut self, document: &Document) {
        let (mut snapshot, now) = (document.program_snapshot(), Instant::now());
        document.connections().read(&snapshot);
        document.complete(&mut snapshot);
        let numbers = snapshot.numbers.since(&self.last.0);
        let system = self.readings.read(document.root(), &snapshot, &numbers);
        let mut totals = document.totals();
        totals.add_step(&numbers);
        totals.add_slow(&snapshot.slow);
        totals.add_stuck(snapshot.stuck.iter());
        drop(totals);
        let length = now.duration_since(self.last.1);
        self.judge_devices(document, &snapshot, &numbers, length.as_secs_f64());
        let length_ms = length.as_millis() as u64;
        self.last = (snapshot.numbers, now);
        document.steps().push(&Step { at_unix_ms: snapshot.at_unix_ms, length_ms, numbers, system });
    }

    /// Finds devices that are slower than their peers, and takes the requested actions.
    fn judge_devices(&mut self, document: &Document, snapshot: &Snapshot, numbers: &Numbers, seconds: f64) {
        let mut devices = document.slow_devices();
        devices.push(snapshot, numbers, seconds);
        let states: Vec<DeviceState> = devices.states().collect();
        drop(devices);
        log_lines(self.slow_actions.apply(&states, seconds, |volume, avoid| document.avoid(volume, avoid)));
        if let Some(lights) = &mut self.slow_lights {
            log_lines(lights.apply(document.root(), &states, snapshot));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
