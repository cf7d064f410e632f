//! Fabrics Connect, and the fence before it.
//!
//! A host that connects anew may have left writes in the sockets of its older connections. A write of the old
//! path that lands after the new association has begun would corrupt data. So before the Connect of an admin
//! queue goes to the port, every core reads what has already arrived on older connections of that host, up to
//! their end or until nothing is there; and the port admits it only when no write of an association that has
//! ended is at a volume. Both waits are bounded: a Connect that has waited for too long is refused as busy.
//!
//! A connection with so many unread answers that it is not read from cannot be read to its end. If its host
//! takes nothing of them it is given up, as its keep-alive timer would have it later (a host may have set
//! none): what it has not read is lost, and so is what its socket still holds of the host's commands, which
//! nobody has begun.

use std::time::{Duration, Instant};

use isolane_proto::Completion;
use isolane_proto::subsystem::Refusal;
use isolane_proto::target::Permit;
use isolane_reactor::socket;
use isolane_wire::fabrics::{ConnectCommand, ConnectData};
use isolane_wire::{Nqn, Status, SubmissionEntry};

use super::lane::{Association, Connecting, Lane};
use super::receive::Progress;
use super::{Core, Driver};
use crate::shared::{Address, Message};
use crate::table::Key;

/// Reading what has arrived from one host, for the Connects on `reply_to`.
pub(super) struct HostReading {
    host_nqn: Nqn,
    lanes: Vec<Unread>,
    reply_to: Vec<Address>,
    until: Instant,
    has_begun: bool,
}

/// A lane that is still to be read from.
struct Unread {
    key: Key,
    bytes_left: u64,
    answers: Answers,
}

/// Whether a host takes the answers that wait for it.
struct Answers {
    sent_bytes: u64,
    since: Instant,
}

impl Answers {
    fn new(now: Instant) -> Answers {
        Answers { sent_bytes: 0, since: now }
    }

    /// Whether so many bytes were sent when it was looked at long ago already, with too much to send at each
    /// look.
    fn are_left(&mut self, is_full: bool, sent_bytes: u64, now: Instant) -> bool {
        if !is_full || sent_bytes != self.sent_bytes {
            *self = Answers { sent_bytes, since: now };
        }
        now.saturating_duration_since(self.since) >= ANSWER_WAIT
    }
}

impl Core {
    /// The data of a Connect is complete.
    pub(super) fn begin_connect(
        &mut self,
        lane: &mut Lane,
        permit: Permit,
        entry: SubmissionEntry,
        data: Vec<u8>,
    ) {
        if lane.connecting.is_some() {
            return self.fail(lane, permit, Status::COMMAND_SEQUENCE_ERROR);
        }
        let cores = self.ask_cores_to_read(&entry, &data, lane.key);
        let until = self.now + CONNECT_WAIT;
        lane.connecting = Some(Connecting { permit, entry, data, cores_left: cores, until });
        if cores == 0 {
            self.try_connect(lane);
        }
    }

    /// A core has read what it had from this host, or could not in time.
    pub(super) fn on_host_read(&mut self, lane: &mut Lane, is_settled: bool) {
        if let Some(connecting) = lane.connecting.take_if(|_| !is_settled) {
            return self.refuse_as_busy(lane, connecting.permit);
        }
        if let Some(connecting) = &mut lane.connecting {
            connecting.cores_left = connecting.cores_left.saturating_sub(1);
            self.try_connect(lane);
        }
    }

    /// Gives the Connect to the port, if nothing is to be waited for.
    pub(super) fn try_connect(&mut self, lane: &mut Lane) {
        let Some(connecting) = lane.connecting.take_if(|connecting| connecting.cores_left == 0) else {
            return;
        };
        let address = Address { core: self.index, lane: lane.key };
        let (entry, data) = (&connecting.entry, &connecting.data[..]);
        match self.shared.connect(entry, data, lane.connection, (address, &lane.busy), self.now) {
            Ok(connected) => {
                log::info!(
                    "{}: connected queue {} of controller {} for {} on reactor {}{}",
                    lane.peer(),
                    connected.qid,
                    connected.id.cntlid,
                    connected.host_nqn,
                    self.index,
                    self.arrival_of(lane)
                );
                lane.queue.set_connected(connected.qid, connected.sqsize, connected.flow_control_disabled);
                lane.association = Some(Association {
                    id: connected.id,
                    qid: connected.qid,
                    host_nqn: connected.host_nqn,
                    status: connected.status,
                    counters: connected.counters,
                });
                self.complete(lane, connecting.permit, connected.completion);
            }
            Err(Refusal::Wait) => lane.connecting = Some(connecting),
            Err(Refusal::Rejected(completion)) => self.refuse(lane, connecting.permit, completion),
        }
    }

    /// Where the packets of a lane arrive, for the end of a log line.
    fn arrival_of(&self, lane: &Lane) -> String {
        let socket = lane.token.and_then(|token| self.reactor.socket(token));
        let core = socket.and_then(|socket| socket::incoming_cpu(&socket));
        core.map_or(String::new(), |core| format!("; its packets arrive on core {core}"))
    }

    /// The Connect has waited for too long.
    pub(super) fn check_connect_deadline(&mut self, lane: &mut Lane) {
        let now = self.now;
        if let Some(connecting) = lane.connecting.take_if(|connecting| now >= connecting.until) {
            self.refuse_as_busy(lane, connecting.permit);
        }
    }

    fn refuse_as_busy(&mut self, lane: &mut Lane, permit: Permit) {
        self.refuse(lane, permit, Completion::failed(Status::CONNECT_CONTROLLER_BUSY));
    }

    fn refuse(&mut self, lane: &mut Lane, permit: Permit, completion: Completion) {
        log::warn!("{}: its Connect was refused: {}", lane.peer(), completion.status);
        self.complete(lane, permit, completion);
        self.leave(lane, "its Connect was refused");
    }

    /// Asks every core with connections of the host to read them; returns how many will answer.
    fn ask_cores_to_read(&self, entry: &SubmissionEntry, data: &[u8], lane: Key) -> usize {
        let Some(host_nqn) = host_of_admin_connect(entry, data) else { return 0 };
        self.shared.ask_to_read(host_nqn, Address { core: self.index, lane })
    }
}

impl Driver {
    /// Another core, or this one, wants to know that nothing of this host is left unread.
    pub(super) fn begin_reading_host(&mut self, host_nqn: &Nqn, reply_to: Address) {
        let mut open = self.readings.iter_mut().filter(|reading| !reading.has_begun);
        if let Some(reading) = open.find(|reading| reading.host_nqn == *host_nqn) {
            return reading.reply_to.push(reply_to);
        }
        let is_of_host = |lane: &Lane| lane.association.as_ref().is_some_and(|it| it.host_nqn == *host_nqn);
        let keys = self.lanes.keys().filter(|key| self.lanes.get(*key).is_some_and(is_of_host));
        let answers = || Answers::new(self.core.now);
        let lanes = keys.map(|key| Unread { key, bytes_left: READ_BYTES_MAX, answers: answers() }).collect();
        self.readings.push(HostReading {
            host_nqn: *host_nqn,
            lanes,
            reply_to: vec![reply_to],
            until: self.core.now + READ_WAIT,
            has_begun: false,
        });
    }

    /// Goes on reading for the Connects that wait, a bounded number of receives a turn.
    pub(super) fn read_hosts(&mut self) {
        let mut readings = std::mem::take(&mut self.readings);
        readings.retain_mut(|reading| {
            reading.has_begun = true;
            reading.lanes.retain_mut(|unread| !self.is_settled(unread));
            let is_settled = reading.lanes.is_empty();
            let is_done = is_settled || self.core.now >= reading.until;
            if is_done {
                for Address { core, lane } in &reading.reply_to {
                    self.core.shared.post(*core, Message::HostRead { lane: *lane, is_settled });
                }
            }
            !is_done
        });
        self.readings = readings;
    }

    /// Whether nothing is left unread on a lane, and every change that was read has reached its volume.
    /// There, later writes to the same blocks come after it.
    fn is_settled(&mut self, unread: &mut Unread) -> bool {
        self.read_until_empty(unread.key, &mut unread.bytes_left);
        if unread.bytes_left > 0 {
            self.give_up_if_deaf(unread);
        }
        unread.bytes_left == 0 && !self.core.has_unstarted_change(unread.key)
    }

    /// Closes a lane that cannot be read from because its host takes no answers.
    fn give_up_if_deaf(&mut self, unread: &mut Unread) {
        let Some(lane) = self.lanes.get_mut(unread.key) else { return };
        // Who waits for memory waits for us.
        let is_full = lane.is_paused && lane.stalled.is_none();
        if unread.answers.are_left(is_full, lane.queue.sent_bytes(), self.core.now) {
            self.core.close(lane, "its host connects anew and does not read its answers");
            unread.bytes_left = 0;
        }
    }

    /// Reads from a lane until nothing is there, or so much that all is read which was there at the start.
    fn read_until_empty(&mut self, key: Key, bytes_left: &mut u64) {
        for _ in 0..RECEIVES_PER_TURN {
            // What comes on a lane that is on its way out is thrown away.
            let Some(before) = self.received_bytes(key).filter(|_| *bytes_left > 0) else {
                *bytes_left = 0;
                return;
            };
            match self.receive(key) {
                Progress::Empty | Progress::Ended => *bytes_left = 0,
                Progress::More => {
                    let after = self.received_bytes(key).unwrap_or(u64::MAX);
                    *bytes_left = bytes_left.saturating_sub(after - before);
                }
                Progress::Paused => return,
            }
        }
    }

    /// Bytes that an open lane has received.
    fn received_bytes(&self, key: Key) -> Option<u64> {
        self.lanes.get(key).filter(|lane| lane.is_open()).map(|lane| lane.queue.received_bytes())
    }
}

/// Whose Connect this is, if it is one of an admin queue. What is malformed is left to the port to refuse.
fn host_of_admin_connect(entry: &SubmissionEntry, data: &[u8]) -> Option<Nqn> {
    if ConnectCommand::parse(entry).qid != 0 {
        return None;
    }
    ConnectData::decode_prefix(data)?.hostnqn.parse().ok()
}

/// A Connect waits no longer than this for older associations of its host.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// A core reads no longer than this for a Connect.
const READ_WAIT: Duration = Duration::from_secs(2);
/// A host that connects anew has so long to take any of the answers on an older connection that is full of
/// them. Less than [`READ_WAIT`], so that its Connect need not be repeated.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// Read from one lane for a Connect, in bytes: no socket's buffer holds as much.
const READ_BYTES_MAX: u64 = 32 << 20;
/// Receives on one lane and turn for a Connect.
const RECEIVES_PER_TURN: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn answers_are_left_when_none_is_taken_for_long() {
        let start = Instant::now();
        let mut answers = Answers::new(start);
        assert!(!answers.are_left(true, 7, start + 100 * MS));
        assert!(!answers.are_left(true, 7, start + 1099 * MS));
        assert!(answers.are_left(true, 7, start + 1100 * MS));
    }

    #[test]
    fn answers_that_are_taken_slowly_or_fit_are_not_left() {
        let start = Instant::now();
        let mut answers = Answers::new(start);
        for second in 0..60 {
            assert!(!answers.are_left(true, u64::from(second) + 1, start + second * 900 * MS));
        }
        let start = start + 3600 * 1000 * MS;
        assert!(!answers.are_left(false, 60, start));
        assert!(!answers.are_left(true, 60, start + 900 * MS));
    }
}
