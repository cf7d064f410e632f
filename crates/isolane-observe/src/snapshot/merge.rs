//! Sums of steps.

use std::collections::BTreeMap;

use crate::histogram::Histogram;

use super::{Connection, Core, Numbers, Series, Step, System, Tcp};

impl Step {
    /// Adds the step after this one.
    ///
    /// # Panics
    ///
    /// If histograms of one kind have different resolutions.
    pub fn merge(&mut self, later: Step) {
        self.at_unix_ms = later.at_unix_ms;
        self.length_ms = self.length_ms.saturating_add(later.length_ms);
        self.numbers.merge(later.numbers);
        self.system.merge(later.system);
    }
}

impl Numbers {
    /// Adds the numbers after these.
    ///
    /// # Panics
    ///
    /// If histograms of one kind have different resolutions.
    pub fn merge(&mut self, later: Numbers) {
        merge_lists(&mut self.series, later.series, Series::key, |one, other| one.merge(&other));
        merge_lists(&mut self.connections, later.connections, |at| at.id, Connection::merge);
        merge_lists(&mut self.cores, later.cores, |at| at.index, Core::merge);
        for (name, value) in later.counters {
            grow(self.counters.entry(name).or_default(), value);
        }
    }
}

impl Connection {
    fn merge(&mut self, later: Connection) {
        let (totals, stages) = (std::mem::take(&mut self.totals), std::mem::take(&mut self.stages_ns));
        let (received, sent, tcp) = (self.received_bytes, self.sent_bytes, self.tcp);
        let peer_times = self.peer_times.take();
        *self = later;
        merge_lists(&mut self.totals, totals, |at| at.0, |one, other| one.1.merge(&other.1));
        merge_lists(&mut self.stages_ns, stages, |at| at.0, |one, other| grow(&mut one.1, other.1));
        grow(&mut self.received_bytes, received);
        grow(&mut self.sent_bytes, sent);
        merge_times(&mut self.peer_times, peer_times.as_ref());
        self.tcp = match (tcp, self.tcp) {
            (Some(earlier), Some(later)) => Some(earlier.followed_by(later)),
            (earlier, later) => later.or(earlier),
        };
    }
}

impl Tcp {
    fn followed_by(self, later: Tcp) -> Tcp {
        Tcp {
            busy_us: self.busy_us.saturating_add(later.busy_us),
            rwnd_limited_us: self.rwnd_limited_us.saturating_add(later.rwnd_limited_us),
            sndbuf_limited_us: self.sndbuf_limited_us.saturating_add(later.sndbuf_limited_us),
            retransmits: self.retransmits.saturating_add(later.retransmits),
            segments: self.segments.saturating_add(later.segments),
            ..later
        }
    }
}

impl Core {
    fn merge(&mut self, later: Core) {
        grow(&mut self.busy_ns, later.busy_ns);
        grow(&mut self.asleep_ns, later.asleep_ns);
        grow(&mut self.late_ns, later.late_ns);
        grow(&mut self.waited_ns, later.waited_ns);
        grow(&mut self.ran_ns, later.ran_ns);
        merge_times(&mut self.turns, later.turns.as_ref());
    }
}

impl System {
    fn merge(&mut self, later: System) {
        merge_lists(
            &mut self.interrupts,
            later.interrupts,
            |at| (at.line.clone(), at.cpu),
            |one, other| grow(&mut one.count, other.count),
        );
        merge_lists(
            &mut self.cpus,
            later.cpus,
            |at| at.cpu,
            |one, other| {
                grow(&mut one.steal_ms, other.steal_ms);
                grow(&mut one.irq_ms, other.irq_ms);
                grow(&mut one.softirq_ms, other.softirq_ms);
                grow(&mut one.idle_ms, other.idle_ms);
            },
        );
        merge_lists(
            &mut self.disks,
            later.disks,
            |at| at.name.clone(),
            |one, other| {
                grow(&mut one.reads, other.reads);
                grow(&mut one.writes, other.writes);
                grow(&mut one.read_bytes, other.read_bytes);
                grow(&mut one.written_bytes, other.written_bytes);
                grow(&mut one.time_ms, other.time_ms);
                grow(&mut one.own, other.own);
                grow(&mut one.own_bytes, other.own_bytes);
            },
        );
        merge_lists(
            &mut self.tasks,
            later.tasks,
            |at| (at.pid, at.cpu),
            |one, other| grow(&mut one.ran_ms, other.ran_ms),
        );
        merge_lists(
            &mut self.users,
            later.users,
            |at| at.pid,
            |one, other| {
                grow(&mut one.read_bytes, other.read_bytes);
                grow(&mut one.written_bytes, other.written_bytes);
            },
        );
        grow(&mut self.quota.throttled, later.quota.throttled);
        grow(&mut self.quota.throttled_ms, later.quota.throttled_ms);
        self.not_seen.extend(later.not_seen);
        self.not_seen.sort();
        self.not_seen.dedup();
    }
}

/// Adds durations of which there can be none.
pub(crate) fn merge_times(sum: &mut Option<Histogram>, more: Option<&Histogram>) {
    match (sum, more) {
        (Some(sum), Some(more)) => sum.merge(more),
        (sum, more) => *sum = sum.take().or(more.cloned()),
    }
}

/// Adds the later entries to the entries with the same key.
fn merge_lists<T, K: Ord>(list: &mut Vec<T>, later: Vec<T>, key: impl Fn(&T) -> K, add: impl Fn(&mut T, T)) {
    // Both lists mostly have the same order.
    let mut places: Option<BTreeMap<K, usize>> = None;
    for (at, entry) in later.into_iter().enumerate() {
        let own = key(&entry);
        if list.get(at).is_some_and(|same| key(same) == own) {
            add(&mut list[at], entry);
            continue;
        }
        let places = places
            .get_or_insert_with(|| list.iter().enumerate().map(|(place, one)| (key(one), place)).collect());
        match places.get(&own) {
            Some(place) => add(&mut list[*place], entry),
            None => {
                places.insert(own, list.len());
                list.push(entry);
            }
        }
    }
}

fn grow(sum: &mut u64, by: u64) {
    *sum = sum.saturating_add(by);
}
