//! Freeze of a core: its lanes are not read, commands in flight end, and another process can continue the lanes.
//!
//! A host that authenticates at that time has a part of it to end that: another process cannot continue the exchange.
//!
//! A command that has not started stays where it is: the state has its capsule, which the other process reads again.
//!
//! Invariant: taking the state changes nothing, so that a core can continue as if it had not been frozen. Until it does, no
//! command starts, and nothing is sent: the state has the bytes that sockets have not accepted yet.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use isolane_memory::Buffer;
use isolane_observe::stage::Operation;
use isolane_proto::subsystem::{AssociationId, ConnectionInfo, ResumedQueue};
use isolane_proto::target::{Connection, ConnectionState, ResumedData, Unstarted};
use isolane_reactor::Token;
use isolane_volume::Request;
use isolane_wire::SubmissionEntry;

use super::authentication::NoKey;
use super::close::ShutdownState;
use super::{Core, Driver, TICK};
use crate::frozen::{self, CoreState, LaneState, Proof, QueueName, ResumedLane, Unfinished};
use crate::lane::{Association, Lane};
use crate::slab::{LaneId, SlabKey};
use crate::timeline::Timeline;
use crate::work::{FileWork, Waiting};

impl Driver {
    /// Stops reading and accepting.
    pub(super) fn begin_freeze(&mut self, patience: Duration, still: Sender<()>) {
        if self.shutdown.is_some() {
            return;
        }
        self.core.frozen = true;
        self.still = Some(still);
        self.core.reactor.pause_listening(true);
        let until = Some(self.core.now + patience);
        self.core.authenticating =
            Authenticating { until, lanes: self.lanes.iter().map(|(key, _)| key).collect() };
        self.pause_authenticated();
        self.fail_held();
    }

    /// Pauses a socket that was added to a frozen core.
    pub(super) fn pause_if_frozen(&mut self, token: Token) {
        if self.core.frozen {
            self.core.reactor.pause(token);
        }
    }

    /// Pauses the lanes on which no exchange is running, or all of them if that takes too long.
    fn pause_authenticated(&mut self) {
        let Driver { core, lanes, .. } = self;
        let is_late = core.authenticating.until.is_none_or(|until| until <= core.now);
        core.authenticating.lanes.retain(|key| {
            let Some(lane) = lanes.get(*key).filter(|lane| lane.is_open()) else { return false };
            let is_read = !is_late && is_authenticating(lane);
            lane.token.filter(|_| !is_read).into_iter().for_each(|token| core.reactor.pause(token));
            is_read
        });
    }

    /// Reports once that nothing is left to do.
    pub(super) fn poll_freeze(&mut self) {
        if !self.core.authenticating.lanes.is_empty() {
            self.pause_authenticated();
        }
        if self.still.is_some()
            && self.unfinished().is_none()
            && let Some(still) = self.still.take()
        {
            // The receiver may have given up.
            let _ = still.send(());
        }
    }

    /// Continues after a freeze.
    pub(super) fn thaw(&mut self) {
        if !std::mem::take(&mut self.core.frozen) {
            return;
        }
        self.core.captured = false;
        self.still = None;
        // What hosts have sent meanwhile is read before their keep-alive timers are checked.
        self.next_tick = self.core.now + TICK;
        self.core.authenticating.lanes.clear();
        self.core.reactor.pause_listening(false);
        for lane in self.lanes.values_mut() {
            match lane.token {
                Some(token) if !lane.paused => self.core.reactor.resume(token),
                _ => self.core.resume_after_send(lane),
            }
            self.core.sends.add(lane);
            self.core.try_connect(lane);
        }
    }

    /// Sends the state of the lanes, or the reason why there is none.
    pub(super) fn send_state(&mut self, sender: &Sender<Result<CoreState, Unfinished>>) {
        let state = match self.unfinished() {
            None if self.core.frozen => self.state(),
            None => Err(Unfinished::new("the end of the target")),
            Some(unfinished) => Err(unfinished),
        };
        self.core.captured |= state.is_ok();
        let _ = sender.send(state);
    }

    /// Ends the core without a change of any connection.
    pub(super) fn leave(&mut self, sender: &Sender<Vec<OwnedFd>>) {
        let Driver { core, lanes, .. } = self;
        // So that the end of a lane ends no association, whose other lanes can be on cores that have not left yet.
        for lane in lanes.values_mut() {
            let auth = lane.association.take().and_then(|association| association.auth);
            // The host repeats its authentication.
            if let Some(computing) = auth.and_then(|mut auth| auth.computing.take()) {
                lane.conn.abandon(computing.permit);
            }
        }
        let open = lanes.values_mut().filter(|lane| lane.is_open());
        let mut sockets: Vec<OwnedFd> =
            open.filter_map(|lane| core.reactor.remove(lane.token.take()?)).collect();
        sockets.extend(core.reactor.take_listeners().into_iter().map(OwnedFd::from));
        let _ = sender.send(sockets);
        self.shutdown = Some(ShutdownState::finished(self.core.now));
    }

    fn state(&mut self) -> Result<CoreState, Unfinished> {
        let mut unstarted: HashMap<SlabKey, Vec<Unstarted<'_>>> = HashMap::new();
        for waiting in self.core.waiting.iter() {
            let permit = match waiting {
                Waiting::Data { permit, .. } => Some(permit),
                Waiting::Start { job, .. } => job.permit.as_ref(),
            };
            let Some(permit) = permit else { continue };
            unstarted.entry(waiting.lane()).or_default().push(Unstarted { permit, data: &[] });
        }
        let mut lanes = Vec::new();
        for (key, lane) in self.lanes.iter_mut().filter(|(_, lane)| lane.is_open()) {
            let unstarted = unstarted.remove(&key).unwrap_or_default();
            let state = self.core.lane_state(lane, unstarted);
            lanes.push(state.ok_or(Unfinished::new("a command of a connection"))?);
        }
        let listener = |listener: &TcpListener| Some((listener.local_addr().ok()?, frozen::name(listener)));
        Ok(CoreState { listeners: self.core.reactor.listeners().filter_map(listener).collect(), lanes })
    }

    /// Returns work that must end before another process can continue.
    fn unfinished(&self) -> Option<Unfinished> {
        let core = &self.core;
        let at = |position: usize, operation: &'static str| Unfinished {
            nsid: Some(core.namespaces.at(position).nsid),
            volume: Some(core.namespaces.at(position).volume.name().to_owned()),
            operation,
        };
        for work in core.files.values() {
            match work {
                FileWork::Command { job, .. } => return Some(at(job.position, job.operation.name())),
                FileWork::Flush { position, .. } => return Some(at(*position, Operation::Flush.name())),
                FileWork::Member(_) => {}
            }
        }
        let limited =
            self.lanes.values().flat_map(|lane| &lane.volumes).flat_map(|at| &at.over_share).flatten();
        if let Some(Waiting::Start { job, .. }) =
            core.waiting.iter().chain(limited).find(|waiting| !is_unstarted(waiting))
        {
            return Some(at(job.position, job.operation.name()));
        }
        if !self.retiring.is_empty() {
            return Some(Unfinished::new("a connection that closes"));
        }
        if let Some(position) = core.flushes.positions().next() {
            return Some(at(position, Operation::Flush.name()));
        }
        if !core.flushes.is_empty() {
            return Some(Unfinished::new("a flush"));
        }
        if core.reactor.files_in_flight() > 0 || !core.files.is_empty() || core.nested.is_waiting() {
            return Some(Unfinished::new("an operation of a volume with members"));
        }
        if !core.authenticating.lanes.is_empty() {
            return Some(Unfinished::new("the authentication of a host"));
        }
        if let Some(nsid) = core.held_nsid() {
            let operation = "a command that waits for its volume";
            return Some(Unfinished { nsid: Some(nsid), volume: None, operation });
        }
        self.lanes.values().find_map(|lane| core.unfinished_of(lane)).map(Unfinished::new)
    }

    /// Continues a connection of another process.
    pub(super) fn resume_lane(&mut self, resumed: ResumedLane) {
        let ResumedLane { socket, connection, conn, queue, proof } = resumed;
        let ended = queue.as_ref().map(|(id, qid, _)| (*id, *qid));
        let peer = connection.remote;
        if let Err(reason) = self.try_resume((socket, connection), conn, queue, proof) {
            log::warn!("{peer}: the connection does not continue: {reason}");
            if let Some((id, qid)) = ended {
                self.core.shared.lane_quota.disconnect(self.core.index);
                self.core.shared.control(|port| {
                    port.handle_disconnected(id, qid);
                    port.handle_drained(id, qid);
                });
            }
        }
    }

    fn try_resume(
        &mut self,
        (socket, connection): (OwnedFd, ConnectionInfo),
        state: ConnectionState,
        queue: Option<(AssociationId, u16, ResumedQueue)>,
        proof: Proof,
    ) -> Result<(), String> {
        if proof == Proof::Running {
            return Err("its host was in the middle of its authentication, and repeats it".to_owned());
        }
        let now = self.core.now;
        let core = &mut self.core;
        let association = match queue {
            Some((id, qid, queue)) => {
                Some(core.resumed_association(id, qid, queue, proof == Proof::Given)?)
            }
            None => None,
        };
        let pool = &mut core.memory.pool;
        let buffer = |len| pool.buffer(len).unwrap_or_else(|| Buffer::contiguous(len));
        let resumed = Connection::resume(self.limits.clone(), state, buffer, now);
        let (conn, arriving) = resumed.map_err(|error| error.to_string())?;
        let token = core.reactor.add(socket).map_err(|error| error.to_string())?;
        core.counters.connections_open.add(1);
        let (index, newcomers) = (core.index, &core.shared.newcomers);
        let limits = self.limits.clone();
        let key = self.lanes.insert_with_key(|lane| {
            let id = LaneId { core: index, lane };
            let newcomer = association.is_none().then(|| newcomers.enter(connection.remote.ip(), id).0);
            let in_quota = association.is_some();
            let is_locked = association.as_ref().is_some_and(Association::is_locked);
            let entry = || core.shared.unauthenticated.enter(connection.remote.ip(), id).0;
            let unauthenticated = is_locked.then(entry);
            let lane = Lane::new(id, token, connection, limits, now);
            Lane { conn, association, newcomer, unauthenticated, in_quota, ..lane }
        });
        self.bind_token(token, key);
        self.pause_if_frozen(token);
        if let Some(lane) = self.lanes.get_mut(key) {
            self.core.attach_memory(lane);
            self.core.begin_resumed(lane, token, arriving);
        }
        Ok(())
    }
}

impl Core {
    /// Returns the reason why a lane cannot be frozen yet.
    fn unfinished_of(&self, lane: &Lane) -> Option<&'static str> {
        let association = lane.association.as_ref();
        let is_fenced = association.and_then(|it| it.fence.as_ref()).is_some_and(|fence| !fence.is_over());
        if lane.waiting_for_page.is_some() {
            return Some("the log page of a host");
        }
        if is_fenced {
            return Some("a change of an older association of a host");
        }
        if lane.token.is_some_and(|token| self.reactor.has_zerocopy_in_flight(token)) {
            return Some("a send without a copy");
        }
        (!lane.is_open() && lane.active > 0).then_some("a command of a closed connection")
    }

    fn lane_state<'a>(&self, lane: &'a mut Lane, mut unstarted: Vec<Unstarted<'a>>) -> Option<LaneState> {
        let socket = lane.token.and_then(|token| self.reactor.socket(token))?.as_raw_fd();
        let Lane { conn, volumes, connecting, stalled, connection, association, .. } = lane;
        for waiting in volumes.iter().flat_map(|at| &at.over_share).flatten() {
            let permit = match waiting {
                Waiting::Data { permit, .. } => Some(permit),
                Waiting::Start { job, .. } => job.permit.as_ref(),
            };
            unstarted.extend(permit.map(|permit| Unstarted { permit, data: &[] }));
        }
        unstarted.extend(connecting.iter().map(|it| Unstarted { permit: &it.permit, data: &it.data }));
        unstarted.extend(stalled.iter().map(|it| Unstarted { permit: &it.permit, data: &[] }));
        let queue = association.as_ref().map(|it| QueueName {
            subsystem: it.id.subsystem.number() as u32,
            cntlid: it.id.cntlid,
            serial: it.id.serial,
            qid: it.qid,
        });
        let auth = association.as_ref().and_then(|it| it.auth.as_ref());
        let computing = auth.and_then(|auth| auth.computing.as_ref());
        unstarted.extend(computing.map(|it| Unstarted { permit: &it.permit, data: &[] }));
        let proof = match auth {
            Some(auth) if auth.is_running() => Proof::Running,
            Some(auth) if auth.exchange.is_authenticated() => Proof::Given,
            _ => Proof::None,
        };
        Some(LaneState {
            core: self.index as u32,
            socket,
            local: connection.local,
            remote: connection.remote,
            listener: connection.listener,
            queue,
            proof,
            conn: conn.freeze(&unstarted, self.now)?,
        })
    }

    fn resumed_association(
        &self,
        id: AssociationId,
        qid: u16,
        queue: ResumedQueue,
        is_authenticated: bool,
    ) -> Result<Association, String> {
        let subsystem = self.shared.control(|port| port.name_of(id.subsystem));
        let subsystem = subsystem.ok_or("its subsystem is gone")?;
        let auth = self.authentication_of(&queue.host, subsystem, is_authenticated);
        let auth = auth.map_err(|NoKey| "its host must authenticate, and this target has no key of it")?;
        let ResumedQueue { host, status, counters } = queue;
        let is_locked = auth.as_ref().is_some_and(|auth| !auth.exchange.is_authenticated());
        let serves_io = qid != 0 && !is_locked;
        let mask_host = self.namespaces.mask_host(&host);
        let changes = self.shared.unflushed.of(id.subsystem, &host);
        Ok(Association { id, qid, host, status, counters, changes, fence: None, serves_io, auth, mask_host })
    }

    /// Starts to serve a lane that was added.
    fn begin_resumed(&mut self, lane: &mut Lane, token: Token, arriving: Vec<ResumedData>) {
        if let Some(association) = &lane.association {
            let (id, qid, host) = (association.id, association.qid, association.host);
            let entries = lane.conn.queue_entries();
            let queue = (lane.id, &lane.in_flight, entries, !association.is_locked());
            self.shared.add_resumed(id, qid, host, queue);
            if let Err(error) = self.configure_socket(token) {
                log::limited!(Warn, "{}: cannot serve the connection: {error}", lane.peer());
                return self.close(lane, "its socket rejects an option");
            }
            if association.status.has_ended() {
                return self.close(lane, "its association has ended");
            }
            for ResumedData { slot, entry, len } in arriving {
                self.expect_resumed(lane, slot, &entry, len);
            }
            if qid == 0 {
                self.complete_async_events(lane);
            }
        }
        self.process_input(lane, &[]);
    }

    fn expect_resumed(&mut self, lane: &mut Lane, slot: u16, entry: &SubmissionEntry, len: usize) {
        let Some(association) = lane.association.as_ref().filter(|it| it.serves_io) else { return };
        if let Some(position) =
            self.namespaces.find_for(association.id.subsystem, entry.nsid, association.mask_host)
        {
            self.expect_data(lane, position, len);
            lane.marks.begin_transfer(slot, position, Timeline::new(self.observer.now()));
        }
    }
}

/// Lanes that a frozen core reads until their hosts have authenticated.
#[derive(Default)]
pub(super) struct Authenticating {
    lanes: Vec<SlabKey>,
    /// Time from which it reads none.
    until: Option<Instant>,
}

impl Authenticating {
    /// Whether a lane is one of them.
    pub(super) fn has(&self, lane: SlabKey) -> bool {
        self.lanes.contains(&lane)
    }
}

fn is_authenticating(lane: &Lane) -> bool {
    let auth = lane.association.as_ref().and_then(|association| association.auth.as_ref());
    auth.is_some_and(|auth| auth.is_running())
}

impl Unfinished {
    pub(crate) fn new(operation: &'static str) -> Unfinished {
        Unfinished { nsid: None, volume: None, operation }
    }
}

/// Whether the capsule of a command can be read again: it has changed nothing, and has no data.
fn is_unstarted(waiting: &Waiting) -> bool {
    matches!(waiting, Waiting::Data { .. } | Waiting::Start { request: Request::Read { .. }, .. })
}
