//! The fence: changes that a host left on older connections never land behind those of its new association.
//!
//! Before the admin Connect of a host goes to the port, every core reads the data that has already arrived on
//! older connections of that host with the subsystem, up to their end or until nothing is there. The changes
//! that are unfinished then (Write, Write Zeroes, Deallocate) are entered into a [`Fence`], and a command of
//! the new association that overlaps one of them waits until that one has ended. Nothing else waits for them.
//!
//! A connection that is not read from, because its host takes no answers or memory is short, cannot be read
//! to its end in time. It stays open. The new association is admitted, and all of its I/O waits until the
//! rest has been read, or until the connection has ended by its keep-alive timer or its stall limit.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use isolane_proto::subsystem::Host;
use isolane_volume::BlockRange;

use super::lane::Lane;
use super::receive::Progress;
use super::work::{FileWork, Waiting};
use super::{Core, Driver};
use crate::fence::Fence;
use crate::shared::Message;
use crate::slab::LaneId;
use crate::slab::SlabKey;

/// Reading the data that has arrived from one host.
pub(super) struct HostDrain {
    host: Host,
    lanes: Vec<UndrainedLane>,
    readers: Vec<Reader>,
    until: Instant,
    started: bool,
}

/// A Connect that the host is read for.
struct Reader {
    /// Gone when the Connect was refused, or when its association has ended.
    fence: Weak<Fence>,
    /// Who waits for the answer; none once it was given.
    reply_to: Option<LaneId>,
}

/// A lane that is still to be read from.
struct UndrainedLane {
    key: SlabKey,
    bytes_left: u64,
}

impl HostDrain {
    /// No later Connect joins it.
    pub(super) fn begin(&mut self) {
        self.started = true;
    }

    /// Whether no Connect waits for it, so that there is no hurry.
    pub(super) fn is_late(&self) -> bool {
        self.readers.iter().all(|reader| reader.reply_to.is_none())
    }

    fn reply(&mut self, core: &Core) {
        for LaneId { core: to, lane } in self.readers.iter_mut().filter_map(|reader| reader.reply_to.take()) {
            core.shared.post(to, Message::HostDrained { lane });
        }
    }
}

impl Driver {
    /// Another core, or this one, needs to know the changes of this host that are unfinished.
    pub(super) fn begin_host_drain(&mut self, host: Host, fence: Arc<Fence>, reply_to: LaneId) {
        let reader = Reader { fence: Arc::downgrade(&fence), reply_to: Some(reply_to) };
        let mut open = self.host_drains.iter_mut().filter(|drain| !drain.started);
        if let Some(drain) = open.find(|drain| drain.host == host) {
            fence.add_unread(drain.lanes.len());
            return drain.readers.push(reader);
        }
        let is_older = |lane: &Lane| {
            let association = lane.association.as_ref().filter(|association| !association.id.discovery);
            association.is_some_and(|association| association.host.matches(&host))
        };
        let keys = self.lanes.keys().filter(|key| self.lanes.get(*key).is_some_and(is_older));
        let lanes: Vec<_> = keys.map(|key| UndrainedLane { key, bytes_left: MAX_DRAIN_BYTES }).collect();
        fence.add_unread(lanes.len());
        let until = self.core.now + DRAIN_TIMEOUT;
        self.host_drains.push(HostDrain { host, lanes, readers: vec![reader], until, started: false });
    }

    /// Continues to read, a bounded number of receives a turn.
    pub(super) fn poll_host_drains(&mut self) {
        let mut host_drains = std::mem::take(&mut self.host_drains);
        host_drains.retain_mut(|drain| {
            drain.begin();
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

    /// Reads once from each lane; the changes of those that were read to their end go into the fences.
    fn read_lanes(&mut self, drain: &mut HostDrain) {
        drain.lanes.iter_mut().for_each(|unread| self.read_until_empty(unread));
        let is_read = |unread: &UndrainedLane| unread.bytes_left == 0;
        let read: HashSet<SlabKey> =
            drain.lanes.iter().filter(|lane| is_read(lane)).map(|lane| lane.key).collect();
        if read.is_empty() {
            return;
        }
        let changes = self.core.unfinished_changes(&read);
        // Otherwise the lanes count as unread until some of the changes have ended.
        let fences: Vec<_> = drain.readers.iter().filter_map(|reader| reader.fence.upgrade()).collect();
        if fences.iter().all(|fence| fence.has_capacity(changes.len())) {
            fences.iter().for_each(|fence| fence.enter(&changes, read.len()));
            drain.lanes.retain(|unread| !is_read(unread));
        }
    }

    /// Reads from a lane until nothing is there, or so much that all is read which was there at the start.
    fn read_until_empty(&mut self, unread: &mut UndrainedLane) {
        let UndrainedLane { key, bytes_left } = unread;
        for _ in 0..RECEIVES_PER_TURN {
            // What comes on a lane that is on its way out is thrown away.
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

    /// Bytes that an open lane has received.
    fn received_bytes(&self, key: SlabKey) -> Option<u64> {
        self.lanes.get(key).filter(|lane| lane.is_open()).map(|lane| lane.conn.received_bytes())
    }

    /// Starts the commands that their fence holds no longer: a bounded number is looked at in each turn.
    pub(super) fn poll_fenced(&mut self) {
        for _ in 0..self.core.fenced.len().min(FENCED_PER_TURN) {
            let Some(waiting) = self.core.fenced.pop_front() else { return };
            let Waiting::Start { lane: key, job, request } = waiting else { unreachable!("{ONLY_STARTS}") };
            match self.lanes.get_mut(key) {
                // It goes to the end of the row again if it is still held.
                Some(lane) => self.core.start(lane, job, request),
                None => unreachable!("a lane went before its last command"),
            }
        }
    }
}

impl Core {
    /// The changes of these lanes that have all of their data and have not ended.
    pub(super) fn unfinished_changes(
        &mut self,
        lanes: &HashSet<SlabKey>,
    ) -> Vec<(usize, BlockRange, Arc<()>)> {
        let rows = [&mut self.waiting, &mut self.blocked, &mut self.fenced].into_iter().flatten();
        let waiting = rows.filter_map(|waiting| match waiting {
            Waiting::Start { lane, job, .. } => Some((*lane, job)),
            Waiting::Data { .. } | Waiting::Flush { .. } => None,
        });
        let at_volumes = self.files.iter_mut().filter_map(|work| match work {
            FileWork::Command { lane, job, .. } => Some((*lane, job)),
            FileWork::Flush { .. } | FileWork::Member(_) => None,
        });
        let changes = waiting.chain(at_volumes).filter(|(lane, job)| lanes.contains(lane) && job.is_change());
        changes.map(|(_, job)| (job.position, job.blocks, Arc::clone(job.mark()))).collect()
    }
}

const ONLY_STARTS: &str = "only commands that are to be started wait for a fence";
/// A Connect waits no longer than this for a core to read.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Read from one lane for a Connect, in bytes: no socket's buffer holds as much.
const MAX_DRAIN_BYTES: u64 = 32 << 20;
/// Receives on one lane and turn for a Connect.
const RECEIVES_PER_TURN: u32 = 16;
/// Commands that wait for their fence and are looked at in one turn.
const FENCED_PER_TURN: usize = 64;
