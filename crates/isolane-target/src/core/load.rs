//! What each core does, told to the first once an interval; the first has the scheduler plan what moves (S8).
//!
//! Not here: how a lane moves (`migration`), and why ([`crate::scheduler`]).

use std::time::{Duration, Instant};

use isolane_reactor::frequency::Frequency;

use super::Driver;
use super::migration::Migration;
use crate::scheduler::{CoreLoad, LaneLoad, Scheduler};
use crate::shared::Message;
use crate::slab::SlabKey;

/// When a core reports, and what the first core knows of all.
pub(super) struct Loads {
    interval: Duration,
    next_report: Instant,
    reported: Instant,
    busy_before: Duration,
    /// These are used on the first core alone.
    scheduler: Scheduler,
    of_cores: Vec<(Instant, CoreLoad)>,
    frequency: Option<Frequency>,
}

impl Loads {
    pub(super) fn new(interval: Duration, cores: usize, now: Instant) -> Loads {
        Loads {
            interval,
            next_report: now + interval,
            reported: now,
            busy_before: Duration::ZERO,
            scheduler: Scheduler::default(),
            of_cores: vec![(now, CoreLoad::default()); cores],
            frequency: None,
        }
    }

    /// When this core reports next.
    pub(super) fn next_report(&self) -> Instant {
        self.next_report
    }

    /// The clock of this core follows its load, if that can be had.
    pub(super) fn drive_frequency(&mut self, core: usize) {
        match Frequency::open(core) {
            Ok(frequency) => {
                log::info!("the clock of core {core} follows its load from now on");
                self.frequency = Some(frequency);
            }
            Err(error) => log::info!("the clock of core {core} does not follow its load: {error}"),
        }
    }

    /// The share of the time with work since the last report, if it is time for another.
    fn busy_share_if_due(&mut self, now: Instant, busy: Duration) -> Option<f64> {
        if now < self.next_report {
            return None;
        }
        let time = now.saturating_duration_since(self.reported).max(Duration::from_micros(1));
        let share = (busy - self.busy_before).as_secs_f64() / time.as_secs_f64();
        (self.reported, self.next_report, self.busy_before) = (now, now + self.interval, busy);
        Some(share.min(1.0))
    }

    /// The newest loads; who has not reported lately has no lanes.
    fn recent(&self, now: Instant) -> Vec<CoreLoad> {
        let oldest = self.interval * 2;
        let load = |(at, load): &(Instant, CoreLoad)| {
            if now.saturating_duration_since(*at) > oldest { CoreLoad::default() } else { load.clone() }
        };
        self.of_cores.iter().map(load).collect()
    }

    fn update_frequency(&mut self, busy: f64) {
        let Some(frequency) = &mut self.frequency else { return };
        if let Err(error) = frequency.update(busy) {
            log::warn!("the clock of the first core follows its load no more: {error}");
            self.frequency = None;
        }
    }
}

impl Driver {
    /// Tells what this core did, if it is time.
    pub(super) fn report_load(&mut self) {
        let (now, busy) = (self.core.now, self.core.reactor.busy_time());
        let Some(share) =
            self.migration.as_mut().and_then(|migration| migration.loads.busy_share_if_due(now, busy))
        else {
            return;
        };
        let load = CoreLoad { busy: share, lanes: self.lane_loads() };
        match self.core.index {
            0 => self.plan_moves(load),
            core => self.core.shared.post(0, Message::Load { core, load }),
        }
    }

    fn lane_loads(&mut self) -> Vec<LaneLoad> {
        let keys: Vec<SlabKey> = self.lanes.keys().collect();
        let loads = keys.into_iter().filter_map(|key| {
            let lane = self.lanes.get_mut(key).filter(|lane| lane.is_open() && lane.association.is_some())?;
            let moved = lane.conn.moved_bytes();
            let before = std::mem::replace(&mut lane.reported_bytes, moved);
            Some(LaneLoad { name: lane.name, moved_bytes: moved - before })
        });
        loads.collect()
    }

    /// Another core has reported.
    pub(super) fn record_load(&mut self, core: usize, load: CoreLoad) {
        if let Some(migration) = &mut self.migration {
            migration.loads.of_cores[core] = (self.core.now, load);
        }
    }

    /// On the first core.
    fn plan_moves(&mut self, own: CoreLoad) {
        let now = self.core.now;
        let Some(Migration { loads, .. }) = &mut self.migration else { return };
        loads.update_frequency(own.busy);
        loads.of_cores[0] = (now, own);
        let recent = loads.recent(now);
        for it in loads.scheduler.plan(&recent) {
            log::debug!("a lane moves from reactor {} to reactor {}: {:?}", it.from, it.to, it.lane);
            self.core.shared.post(it.from, Message::Migrate { lane: it.lane, to: it.to });
        }
    }
}
