//! The association of a client that has its own: connections, reconnecting, and the order of commands.
//!
//! ```text
//! Client::submit_with ─ SubmitSlot::submit (must wait: RequestTable ─ backlog ─ pump ─ send_part)
//! Client::turn ─ Client::transmit ─ Lane::send ─ Reactor::turn ─ Client::receive ─ Lane::receive
//!              ─ RequestTable::complete_single (rare: on_completed)
//! ```
//!
//! One thread, no lock, one `sendmsg` per lane and turn. Only reconnecting and the probes of a
//! [`fence`](crate::fence) run on other threads.
//!
//! Invariants: each request gets exactly one completion; a request goes through the lane it was submitted to.

mod admin_queue;
mod association;
mod coalesce;
pub(crate) mod command;
mod flow;
mod graceful_close;
mod lane;
mod link;
mod replay;
mod retry;
#[cfg(test)]
mod tests;
mod turn;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use isolane_proto::host::Completed;
use isolane_reactor::{Event, Reactor, ReactorConfig, ReactorError, Waker, cpu, mailbox, socket};
use socket2::SockRef;

use self::association::{Link, LiveAssociation, Outage};
use self::coalesce::Coalescer;
use self::lane::Lane;
use self::replay::Replay;
use self::retry::Retries;
use crate::client_state::ClientState;
use crate::connect::expiry::{OldAssociation, Verdict};
use crate::connect::fence::Fences;
use crate::connect::journal::{JournalEntry, StaleAssociation};
use crate::connect::{self, Association, Plan};
use crate::error::ConnectError;
use crate::info::ConnectionStatus;
use crate::io_limits::IoLimits;
use crate::lane_class::LaneClass;
use crate::request_table::PartRange;

/// The association of a client, and everything that outlives its loss except the requests.
pub(crate) struct Direct {
    plan: Arc<Plan>,
    link: Link,
    /// Parts that wait for capacity, by lane.
    backlogs: Vec<VecDeque<PartRange>>,
    replay: Replay,
    retries: Retries,
    pub coalescer: Coalescer,
    reactor: Reactor,
    sender: mailbox::Sender<Message>,
    messages: mailbox::Receiver<Message>,
    events: Vec<Event>,
    completed: Vec<Completed>,
    overflow: Box<[u8]>,
    now: Instant,
    housekeeping: Instant,
    woken: bool,
    /// Whether lanes have more to send than their share of the last turn.
    has_more: bool,
}

/// Messages from other threads.
enum Message {
    /// An attempt to connect has ended.
    Connected(Result<Box<Association>, ConnectError>),
    /// Verdict about a lost association.
    Fenced { id: u64, verdict: Verdict },
}

impl Direct {
    /// Connects as one of the clients of a volume, whose writes wait for the `fences` of each. With a journal, as
    /// [`crate::Client::connect_with_journal`].
    pub(crate) fn connect(
        plan: Plan,
        fences: Arc<Fences>,
        stale: &[(u64, StaleAssociation)],
    ) -> Result<(Direct, ClientState), ConnectError> {
        let plan = Arc::new(plan);
        let died = Instant::now();
        let association = connect::associate(&plan)?;
        let info = association.info.clone();
        let namespace = info.choose(plan.uri.nsid)?.clone();
        let limits = IoLimits::new(&namespace, &info)?;
        let options = &plan.options;
        let config = ReactorConfig { io: options.io, mode: options.mode, spin: options.spin, core: None };
        let reactor = Reactor::new(config).map_err(|error| match error {
            ReactorError::Setup { what, error } => ConnectError::system(what, error),
            error => ConnectError::system("a reactor", std::io::Error::other(error.to_string())),
        })?;
        let (sender, messages) = mailbox::unbounded(reactor.waker());
        // Only now: a failed attempt must not leave a thread and a probe for each stale association.
        if let Some(journal) = &plan.journal {
            for (key, association) in stale {
                let old = OldAssociation { association: association.clone(), died };
                fences.raise_for(old, JournalEntry::of(journal, *key), &plan);
            }
        }
        let member = sender.clone();
        fences.join(move |id, verdict| {
            // A closed client needs no verdict.
            let _ = member.send(Message::Fenced { id, verdict });
        });
        let (lanes, now) = (info.negotiated.lanes, Instant::now());
        let mut state = ClientState::new(info, namespace, limits, options);
        let mut direct = Direct {
            link: Link::Down(Outage::initial()),
            backlogs: vec![VecDeque::new(); lanes.total()],
            replay: Replay::new(fences),
            retries: Retries::new(options.command_timeout),
            coalescer: Coalescer::new(options.coalesce),
            reactor,
            sender,
            messages,
            events: Vec::new(),
            completed: Vec::new(),
            overflow: vec![0; OVERFLOW_BYTES].into_boxed_slice(),
            now,
            housekeeping: now,
            woken: false,
            has_more: false,
            plan,
        };
        direct.on_connected(&mut state, association)?;
        log::info!("{}: connected", state.info.address);
        Ok((direct, state))
    }

    pub(crate) fn waker(&self) -> Waker {
        self.reactor.waker()
    }

    pub(crate) fn housekeeping(&self) -> Instant {
        self.housekeeping
    }

    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// Returns the status of every connection, as [`crate::Client::connections`].
    pub(crate) fn connections(&self, state: &ClientState) -> Vec<ConnectionStatus> {
        let Link::Up(live) = &self.link else { return Vec::new() };
        let LiveAssociation { admin, lanes, .. } = &**live;
        let admin = self.status_of(state, &admin.lane, 0, None);
        let lanes = lanes.iter().enumerate().filter_map(|(index, lane)| {
            // Queues are connected in the order of lanes.
            self.status_of(state, lane, index as u16 + 1, Some(state.current_lanes.locate(index)))
        });
        admin.into_iter().chain(lanes).collect()
    }

    fn status_of(
        &self,
        state: &ClientState,
        lane: &Lane,
        qid: u16,
        position: Option<(LaneClass, usize)>,
    ) -> Option<ConnectionStatus> {
        let socket = self.reactor.socket(lane.token)?;
        Some(ConnectionStatus {
            cntlid: state.info.controller.cntlid,
            core: None,
            qid,
            lane: position,
            local: SockRef::from(&socket).local_addr().ok()?.as_socket()?,
            driving_core: cpu::current(),
            incoming_cpu: socket::incoming_cpu(&socket),
        })
    }
}

/// Size of the buffer for data whose destination is not known yet. Large enough for a deep queue of small reads,
/// small enough for the second-level cache.
const OVERFLOW_BYTES: usize = 128 * 1024;
