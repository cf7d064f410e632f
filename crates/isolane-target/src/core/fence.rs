//! Fences between associations. Invariant: no change of an older connection of a host lands after a change of
//! its new association.
//!
//! Before the admin Connect of a host reaches the port, every core drains the older connections of that host:
//! it reads the data that has already arrived. The unfinished changes (Write, Write Zeroes, Deallocate) are
//! entered into a [`Fence`], and a command of the new association that overlaps one of them waits until it
//! has ended.
//!
//! A paused connection, whose host reads no responses or which waits for memory, cannot be drained in time.
//! It stays open. The new association is admitted, and all its I/O waits until the connection is drained or
//! ends by its keep-alive timer or its stall limit.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use isolane_proto::subsystem::{Host, SubsystemId};
use isolane_volume::BlockRange;

use super::receive::Progress;
use super::{Core, Driver};
use crate::fence::Fence;
use crate::lane::Lane;
use crate::shared::Message;
use crate::slab::{LaneId, SlabKey};
use crate::work::{FileWork, Waiting};

/// Drain of the connections of one host to one subsystem.
pub(super) struct HostDrain {
    host: (SubsystemId, Host),
    lanes: Vec<UndrainedLane>,
    readers: Vec<Reader>,
    until: Instant,
    /// Later Connects do not join this drain.
    pub(super) started: bool,
}

/// A Connect that waits for a drain.
struct Reader {
    /// Dropped when the Connect was refused or its association has ended.
    fence: Weak<Fence>,
    /// Lane of the Connect; `None` once the reply was sent.
    reply_to: Option<LaneId>,
}

/// A lane that is not drained yet.
struct UndrainedLane {
    key: SlabKey,
    bytes_left: u64,
}

impl HostDrain {
    /// Returns `true` if no Connect waits for it.
    pub(super) fn is_late(&self) -> bool {
        self.readers.iter().all(|reader| reader.reply_to.is_none())
    }

    fn reply(&mut self, core: &Core) {
        for lane in self.readers.iter_mut().filter_map(|reader| reader.reply_to.take()) {
            core.shared.post(lane.core, Message::HostDrained { lane });
        }
    }
}

impl Driver {
    /// Starts a drain for a Connect on any core.
    pub(super) fn begin_host_drain(
        &mut self,
        host: (SubsystemId, Host),
        fence: Arc<Fence>,
        reply_to: LaneId,
    ) {
        let reader = Reader { fence: Arc::downgrade(&fence), reply_to: Some(reply_to) };
        let mut open = self.host_drains.iter_mut().filter(|drain| !drain.started);
        if let Some(drain) = open.find(|drain| drain.host == host) {
            fence.add_unread(drain.lanes.len());
            return drain.readers.push(reader);
        }
        let is_older = |lane: &Lane| {
            let association = lane.association.as_ref();
            association.is_some_and(|it| it.id.subsystem == host.0 && it.host.matches(&host.1))
        };
        let keys = self.lanes.keys().filter(|key| self.lanes.get(*key).is_some_and(is_older));
        let lanes: Vec<_> = keys.map(|key| UndrainedLane { key, bytes_left: MAX_DRAIN_BYTES }).collect();
        fence.add_unread(lanes.len());
        let until = self.core.now + DRAIN_TIMEOUT;
        self.host_drains.push(HostDrain { host, lanes, readers: vec![reader], until, started: false });
    }

    /// Continues the drains with a bounded number of receives per turn.
    pub(super) fn poll_host_drains(&mut self) {
        if self.core.frozen {
            return;
        }
        let mut host_drains = std::mem::take(&mut self.host_drains);
        host_drains.retain_mut(|drain| {
            drain.started = true;
            drain.readers.retain(|reader| reader.fence.strong_count() > 0);
            self.read_lanes(drain);
            let is_read = drain.lanes.is_empty() || drain.readers.is_empty();
            if is_read || self.core.now >= drain.until {
                drain.reply(&self.core);
            }
            !is_read
        });
        self.host_drains = host_drains;
    }

    /// Reads from each lane; enters the changes of drained lanes into the fences.
    fn read_lanes(&mut self, drain: &mut HostDrain) {
        drain.lanes.iter_mut().for_each(|unread| self.read_until_empty(unread));
        let is_read = |unread: &UndrainedLane| unread.bytes_left == 0;
        let read: HashSet<SlabKey> =
            drain.lanes.iter().filter(|lane| is_read(lane)).map(|lane| lane.key).collect();
        if read.is_empty() {
            return;
        }
        let changes = self.core.unfinished_changes(&read);
        // Otherwise the lanes stay undrained until some of the changes have ended.
        let fences: Vec<_> = drain.readers.iter().filter_map(|reader| reader.fence.upgrade()).collect();
        if fences.iter().all(|fence| fence.has_capacity(changes.len())) {
            fences.iter().for_each(|fence| fence.enter(&changes, read.len()));
            drain.lanes.retain(|unread| !is_read(unread));
        }
    }

    /// Reads from a lane until its socket is empty, or as much as any socket buffer can hold.
    fn read_until_empty(&mut self, unread: &mut UndrainedLane) {
        let UndrainedLane { key, bytes_left } = unread;
        for _ in 0..RECEIVES_PER_TURN {
            // Data on a closing lane is discarded.
            let Some(before) = self.received_bytes(*key).filter(|_| *bytes_left > 0) else {
                *bytes_left = 0;
                return;
            };
            match self.receive(*key) {
                Progress::Empty | Progress::Ended => *bytes_left = 0,
                Progress::More => {
                    let after = self.received_bytes(*key).unwrap_or(u64::MAX);
                    *bytes_left = bytes_left.saturating_sub(after - before);
                }
                Progress::Paused => return,
            }
        }
    }

    /// Returns the bytes that an open lane has received.
    fn received_bytes(&self, key: SlabKey) -> Option<u64> {
        self.lanes.get(key).filter(|lane| lane.is_open()).map(|lane| lane.conn.received_bytes())
    }

    /// Starts commands whose fence has released them; checks a bounded number per turn.
    pub(super) fn poll_fenced(&mut self) {
        for _ in 0..self.core.waiting.fenced.len().min(FENCED_PER_TURN) {
            let Some(waiting) = self.core.waiting.fenced.pop_front() else { return };
            self.continue_held(waiting);
        }
    }
}

impl Core {
    /// Returns the unfinished changes of these lanes that have all their data.
    pub(super) fn unfinished_changes(
        &mut self,
        lanes: &HashSet<SlabKey>,
    ) -> Vec<(usize, BlockRange, Arc<()>)> {
        let waiting = self.waiting.iter_mut().filter_map(|waiting| match waiting {
            Waiting::Start { lane, job, .. } => Some((*lane, job)),
            Waiting::Data { .. } => None,
        });
        let at_volumes = self.files.values_mut().filter_map(|work| match work {
            FileWork::Command { lane, job, .. } => Some((*lane, job)),
            FileWork::Flush { .. } | FileWork::Member(_) => None,
        });
        let changes = waiting.chain(at_volumes).filter(|(lane, job)| lanes.contains(lane) && job.is_change());
        changes.map(|(_, job)| (job.position, job.blocks, Arc::clone(job.mark()))).collect()
    }
}

/// Time limit for a core to drain before it replies to a Connect.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of bytes read from one lane for a Connect; larger than any socket buffer.
const MAX_DRAIN_BYTES: u64 = 32 << 20;
/// Receives per lane and turn for a Connect.
const RECEIVES_PER_TURN: u32 = 16;
/// Fenced commands that one turn checks.
const FENCED_PER_TURN: usize = 64;
