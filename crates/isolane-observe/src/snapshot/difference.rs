//! Sums and differences of numbers.

use std::collections::BTreeMap;

use super::{Connection, Core, Numbers, Series, SeriesKey, Snapshot, TailRow, Tcp, merge_times};
use crate::histogram::Histogram;
use crate::stage::Stage;

impl Snapshot {
    /// Returns `true` if the program was not restarted after the older copy `earlier`. The page of a target has no
    /// process ID.
    pub fn is_same_run(&self, earlier: &Snapshot) -> bool {
        let (now, before) = (&self.program, &earlier.program);
        now.pid == before.pid && now.uptime_ms >= before.uptime_ms
    }
}

impl Series {
    /// Returns the name of the numbers.
    pub fn key(&self) -> SeriesKey {
        let Series { side, volume, core, operation, size, .. } = *self;
        SeriesKey { side, volume, core, operation, size }
    }

    /// Returns `true` if nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.total.count() == 0 && self.errors == 0 && self.last == 0
    }

    /// Returns the durations above zero of a stage.
    pub fn stage(&self, stage: Stage) -> Option<&Histogram> {
        self.stages.iter().find(|at| at.stage == stage).map(|at| &at.times)
    }

    /// Returns the sum of a stage, in nanoseconds.
    pub fn stage_sum_ns(&self, stage: Stage) -> u64 {
        self.stage(stage).map_or(0, Histogram::sum_ns)
    }

    /// Returns a quantile of a stage in nanoseconds, counting operations that spent no time in it.
    pub fn stage_quantile(&self, stage: Stage, quantile: f64) -> u64 {
        let Some(times) = self.stage(stage) else { return 0 };
        let all = self.total.count().max(times.count());
        let zero = all.saturating_sub(times.count());
        let wanted = (all as f64 * quantile).ceil() as u64;
        if wanted <= zero {
            return 0;
        }
        times.quantile((wanted - zero) as f64 / times.count() as f64)
    }

    /// Adds the numbers of `other`, which has the same side.
    pub fn merge(&mut self, other: &Series) {
        self.total.merge(&other.total);
        for at in &other.stages {
            match self.stages.iter_mut().find(|mine| mine.stage == at.stage) {
                Some(mine) => mine.times.merge(&at.times),
                None => self.stages.push(at.clone()),
            }
        }
        for row in &other.tail {
            match self.tail.iter_mut().find(|mine| mine.row == row.row) {
                Some(mine) => mine.combine(row, u64::saturating_add),
                None => self.tail.push(row.clone()),
            }
        }
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.errors = self.errors.saturating_add(other.errors);
        self.last = self.last.saturating_add(other.last);
        self.last_by_ns = self.last_by_ns.saturating_add(other.last_by_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        merge_times(&mut self.unseen, other.unseen.as_ref());
    }

    /// Returns the operations since `earlier`, an older copy of the same numbers.
    pub fn since(&self, earlier: &Series) -> Series {
        let mut difference = self.clone();
        difference.total = self.total.since(&earlier.total);
        for at in &mut difference.stages {
            if let Some(times) = earlier.stage(at.stage) {
                at.times = at.times.since(times);
            }
        }
        difference.stages.retain(|at| at.times.count() > 0);
        for row in &mut difference.tail {
            if let Some(before) = earlier.tail.iter().find(|before| before.row == row.row) {
                row.combine(before, u64::saturating_sub);
            }
        }
        difference.tail.retain(|row| row.sums_ns.iter().any(|ns| *ns > 0));
        if let (Some(mine), Some(earlier)) = (&mut difference.unseen, &earlier.unseen) {
            *mine = mine.since(earlier);
        }
        difference.bytes = self.bytes.saturating_sub(earlier.bytes);
        difference.errors = self.errors.saturating_sub(earlier.errors);
        difference.last = self.last.saturating_sub(earlier.last);
        difference.last_by_ns = self.last_by_ns.saturating_sub(earlier.last_by_ns);
        difference
    }
}

impl TailRow {
    fn combine(&mut self, other: &TailRow, combine: fn(u64, u64) -> u64) {
        for (mine, other) in self.sums_ns.iter_mut().zip(&other.sums_ns) {
            *mine = combine(*mine, *other);
        }
    }
}

impl Connection {
    fn since(&self, earlier: &Connection) -> Connection {
        let mut difference = self.clone();
        for (size, times) in &mut difference.totals {
            if let Some((_, before)) = earlier.totals.iter().find(|(before, _)| before == size) {
                *times = times.since(before);
            }
        }
        difference.totals.retain(|(_, times)| times.count() > 0);
        for (stage, ns) in &mut difference.stages_ns {
            let before = earlier.stages_ns.iter().find(|(before, _)| before == stage);
            *ns = ns.saturating_sub(before.map_or(0, |(_, ns)| *ns));
        }
        difference.stages_ns.retain(|(_, ns)| *ns > 0);
        difference.received_bytes = self.received_bytes.saturating_sub(earlier.received_bytes);
        difference.sent_bytes = self.sent_bytes.saturating_sub(earlier.sent_bytes);
        if let (Some(mine), Some(earlier)) = (&mut difference.peer_times, &earlier.peer_times) {
            *mine = mine.since(earlier);
        }
        difference.peer_times.take_if(|times| times.count() == 0);
        difference.tcp = self.tcp.map(|tcp| tcp.since(earlier.tcp.unwrap_or_default()));
        difference
    }

    /// Returns `true` if the difference to `earlier` shows no work, without the cost of the difference.
    fn is_idle_since(&self, earlier: &Connection) -> bool {
        self.in_flight == 0
            && self.received_bytes == earlier.received_bytes
            && self.sent_bytes == earlier.sent_bytes
            && self.totals == earlier.totals
            && self.peer_times == earlier.peer_times
    }

    /// Returns `true` if a difference shows no work.
    fn is_idle(&self) -> bool {
        self.totals.is_empty()
            && self.received_bytes == 0
            && self.sent_bytes == 0
            && self.in_flight == 0
            && self.peer_times.is_none()
    }
}

impl Tcp {
    fn since(self, earlier: Tcp) -> Tcp {
        Tcp {
            busy_us: self.busy_us.saturating_sub(earlier.busy_us),
            rwnd_limited_us: self.rwnd_limited_us.saturating_sub(earlier.rwnd_limited_us),
            sndbuf_limited_us: self.sndbuf_limited_us.saturating_sub(earlier.sndbuf_limited_us),
            retransmits: self.retransmits.saturating_sub(earlier.retransmits),
            segments: self.segments.saturating_sub(earlier.segments),
            ..self
        }
    }
}

impl Core {
    fn since(&self, earlier: &Core) -> Core {
        let turns = match (&self.turns, &earlier.turns) {
            (Some(turns), Some(before)) => Some(turns.since(before)),
            (turns, _) => turns.clone(),
        };
        Core {
            busy_ns: self.busy_ns.saturating_sub(earlier.busy_ns),
            asleep_ns: self.asleep_ns.saturating_sub(earlier.asleep_ns),
            late_ns: self.late_ns.saturating_sub(earlier.late_ns),
            waited_ns: self.waited_ns.saturating_sub(earlier.waited_ns),
            ran_ns: self.ran_ns.saturating_sub(earlier.ran_ns),
            turns,
            ..*self
        }
    }
}

impl Numbers {
    /// Returns the difference to `earlier`, an older copy of the same program. Series and connections without work in
    /// between are left out.
    pub fn since(&self, earlier: &Numbers) -> Numbers {
        let before: BTreeMap<_, _> = earlier.series.iter().map(|series| (series.key(), series)).collect();
        let series = self.series.iter().map(|series| match before.get(&series.key()) {
            Some(before) => series.since(before),
            None => series.clone(),
        });
        let series = series.filter(|series| !series.is_empty()).collect();
        let before: BTreeMap<_, _> = earlier.connections.iter().map(|at| (at.id, at)).collect();
        let connections = self.connections.iter().filter_map(|at| match before.get(&at.id) {
            Some(before) if at.is_idle_since(before) => None,
            Some(before) => Some(at.since(before)),
            None => Some(at.clone()),
        });
        let connections = connections.filter(|at| !at.is_idle()).collect();
        let cores = self.cores.iter().map(|core| {
            let before = earlier.cores.iter().find(|before| before.index == core.index);
            before.map_or_else(|| core.clone(), |before| core.since(before))
        });
        let cores = cores.collect();
        let counters = self.counters.iter().map(|(name, value)| {
            (name.clone(), value.saturating_sub(earlier.counters.get(name).copied().unwrap_or(0)))
        });
        Numbers { series, connections, cores, counters: counters.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Resolution;
    use crate::stage::SizeClass;

    #[test]
    fn skips_exactly_connections_that_did_nothing() {
        let mut one = Histogram::new(Resolution::Four);
        one.record(5_000, 1);
        let mut two = one.clone();
        two.record(5_000, 1);
        let (size, bytes) = (SizeClass::ALL[0], 4_096);
        let before = Connection {
            totals: vec![(size, one.clone())],
            peer_times: Some(one),
            received_bytes: bytes,
            sent_bytes: bytes,
            ..Connection::default()
        };
        let same = before.clone();
        let completed = Connection { totals: vec![(size, two.clone())], ..before.clone() };
        let acknowledged = Connection { peer_times: Some(two), ..before.clone() };
        let received = Connection { received_bytes: 2 * bytes, ..before.clone() };
        let sent = Connection { sent_bytes: 2 * bytes, ..before.clone() };
        let waits = Connection { in_flight: 1, ..before.clone() };
        for (at, is_idle) in [
            (same, true),
            (completed, false),
            (acknowledged, false),
            (received, false),
            (sent, false),
            (waits, false),
        ] {
            assert_eq!(at.is_idle_since(&before), is_idle, "{at:?}");
            assert_eq!(at.since(&before).is_idle(), is_idle, "{at:?}");
        }
    }
}
