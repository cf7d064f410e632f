//! Connections of endpoints.
//!
//! Invariant: an endpoint reports one end of a connection at most, after all completions, and nothing once it is closed.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use isolane_verbs::connection_manager::{Answer, Attempt, Handler, HandlerRef, OTHER_PORT};
use isolane_verbs::wire::connection_manager::{Kind, Message};
use isolane_verbs::{Peer, QueuePair, ReceiveAttributes, SendAttributes};
use parking_lot::Mutex;

use crate::abi;
use crate::event_queue::{Event, Events};
use crate::ffi::{Errno, Result, check};
use crate::objects::shared_key;
use crate::request::{ConnectionRequest, MAX_DATA, agent};

/// The connection of an endpoint.
pub(crate) struct Link {
    weak: Weak<Link>,
    /// Address of the endpoint, for its events.
    fid: AtomicUsize,
    /// Set when the endpoint is enabled.
    pub(crate) pair: OnceLock<QueuePair>,
    pub(crate) events: OnceLock<Arc<Events>>,
    /// The endpoint is open. The agent holds the lock while it uses it.
    is_open: Mutex<bool>,
    state: Mutex<State>,
}

struct State {
    stage: Stage,
    /// Number of the connection at the agent.
    number: Option<u64>,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    /// Number of the first message of this end.
    first_message: u32,
    /// The queue pair has failed.
    has_ended: bool,
}

/// Progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    /// This end waits for an answer to its request.
    Requesting,
    /// This end has accepted the request of the peer.
    Accepted,
    Established,
    Ended,
    /// The endpoint is closed.
    Closed,
}

impl Link {
    pub(crate) fn new(local: Option<SocketAddr>) -> Result<Arc<Link>> {
        let first_message = getrandom::u32().map_err(|_| Errno(libc::EIO))? & 0xff_ffff;
        let state =
            State { stage: Stage::Idle, number: None, local, peer: None, first_message, has_ended: false };
        Ok(Arc::new_cyclic(|weak| Link {
            weak: Weak::clone(weak),
            fid: AtomicUsize::new(0),
            pair: OnceLock::new(),
            events: OnceLock::new(),
            is_open: Mutex::new(true),
            state: Mutex::new(state),
        }))
    }

    pub(crate) fn set_fid(&self, fid: usize) {
        self.fid.store(fid, Ordering::Release);
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        self.state.lock().local
    }

    pub(crate) fn set_local(&self, local: SocketAddr) {
        self.state.lock().local = Some(local);
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.state.lock().peer
    }

    fn handler(&self) -> HandlerRef {
        let handler: HandlerRef = Weak::<Link>::clone(&self.weak);
        handler
    }

    fn push(&self, event: u32, data: Vec<u8>) {
        let fid = self.fid.load(Ordering::Acquire);
        if let Some(events) = self.events.get() {
            events.push(Event::Connection { event, fid, info: None, data });
        }
    }

    /// Ends a connection that is not established.
    fn fail(&self, state: &mut State, error: c_int, data: Vec<u8>) {
        let is_pending = matches!(state.stage, Stage::Requesting | Stage::Accepted);
        if is_pending {
            state.stage = Stage::Ended;
            let fid = self.fid.load(Ordering::Acquire);
            if let Some(events) = self.events.get() {
                events.push(Event::Failure { fid, context: 0, error, data });
            }
        }
    }

    fn establish(&self, state: &mut State, data: Vec<u8>) {
        state.stage = Stage::Established;
        self.push(abi::CONNECTED, data);
        if state.has_ended {
            self.end(state);
        }
    }

    fn end(&self, state: &mut State) {
        if state.stage == Stage::Established {
            state.stage = Stage::Ended;
            self.push(abi::SHUTDOWN, Vec::new());
        }
    }

    /// The queue pair has failed. Called with its lock held.
    pub(crate) fn on_end(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        self.fail(&mut state, libc::ECONNABORTED, Vec::new());
        self.end(&mut state);
    }

    /// Connects the queue pair with the one of an offer.
    fn start(&self, offer: &Message) -> Result<()> {
        let pair = self.pair.get().ok_or(Errno(abi::EOPBADSTATE))?;
        let (local, peer, first_message) = {
            let state = self.state.lock();
            (state.local.ok_or(Errno::INVALID)?, state.peer.ok_or(Errno::INVALID)?, state.first_message)
        };
        let peer = Peer { address: peer.ip(), number: offer.number };
        let failed = |_| Errno(libc::ECONNABORTED);
        pair.start_receiving_at(local.ip(), peer, offer.first_message, &ReceiveAttributes::default())
            .map_err(failed)?;
        pair.start_sending(first_message, &SendAttributes::default(), Some(LANE_TIMEOUT)).map_err(failed)
    }

    /// Returns a message with the queue pair of this end.
    fn message(&self, kind: Kind, data: &[u8], is_shared: bool) -> Result<Message> {
        check(data.len() <= MAX_DATA)?;
        let mut message = Message::new(kind);
        message.number = self.pair.get().ok_or(Errno(abi::EOPBADSTATE))?.number();
        message.first_message = self.state.lock().first_message;
        (message.rnr_retries, message.retries) = (7, 7);
        (message.responder_resources, message.initiator_depth) = (16, 16);
        (message.shares_receives, message.spares_receives) = (is_shared, true);
        message.private_data = data.to_vec();
        Ok(message)
    }

    pub(crate) fn connect(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
        data: &[u8],
        is_shared: bool,
    ) -> Result<()> {
        let request = Message { port: peer.port(), ..self.message(Kind::Request, data, is_shared)? };
        let (agent, key) = (agent()?, shared_key()?);
        let number = agent.number();
        {
            let mut state = self.state.lock();
            if state.stage != Stage::Idle {
                return Err(Errno(libc::EISCONN));
            }
            (state.stage, state.number) = (Stage::Requesting, Some(number));
            (state.local, state.peer) = (Some(local), Some(peer));
        }
        let other = SocketAddr::new(peer.ip(), peer.port() ^ OTHER_PORT);
        agent.connect(number, Attempt::new(local, &[peer, other], request, key, self.handler()));
        Ok(())
    }

    pub(crate) fn accept(&self, request: ConnectionRequest, data: &[u8], is_shared: bool) -> Result<()> {
        let reply = self.message(Kind::Reply, data, is_shared)?;
        {
            let mut state = self.state.lock();
            if state.stage != Stage::Idle {
                return Err(Errno(libc::EISCONN));
            }
            (state.stage, state.number) = (Stage::Accepted, Some(request.number));
            (state.local, state.peer) = (Some(request.local), Some(request.peer));
        }
        let number = request.take();
        self.start(&request.offer)?;
        let agent = agent()?;
        agent.adopt(number, self.handler());
        agent.send(number, &reply)?;
        Ok(())
    }

    /// Ends the connection on behalf of the program.
    pub(crate) fn shutdown(&self) -> Result<()> {
        let number = self.state.lock().number.ok_or(Errno(libc::ENOTCONN))?;
        if let Some(pair) = self.pair.get() {
            pair.fail();
        }
        // The peer can have ended it at the same time.
        let _ = agent()?.send(number, &Message::new(Kind::Disconnect));
        Ok(())
    }

    pub(crate) fn close(&self) {
        *self.is_open.lock() = false;
        let (number, fid) = {
            let mut state = self.state.lock();
            state.stage = Stage::Closed;
            (state.number.take(), self.fid.load(Ordering::Acquire))
        };
        if let Some(pair) = self.pair.get() {
            pair.reset();
        }
        if let (Some(number), Ok(agent)) = (number, agent()) {
            let _ = agent.send(number, &Message::new(Kind::Disconnect));
            agent.close(number);
        }
        if let Some(events) = self.events.get() {
            events.forget(fid);
        }
    }

    /// The peer has accepted.
    fn on_reply(&self, reply: Message) {
        let number = self.state.lock().number;
        let started = self.start(&reply).and_then(|()| {
            let number = number.ok_or(Errno(libc::ENOTCONN))?;
            agent()?.send(number, &Message::new(Kind::Ready))?;
            Ok(())
        });
        let mut state = self.state.lock();
        match started {
            Ok(()) if state.stage == Stage::Requesting => self.establish(&mut state, reply.private_data),
            Ok(()) => {}
            Err(error) => self.fail(&mut state, error.0, Vec::new()),
        }
    }

    /// The connection of the agent has ended: everything that the peer has sent before arrives.
    fn expect_end(&self) {
        self.fail(&mut self.state.lock(), libc::ECONNRESET, Vec::new());
        if let Some(pair) = self.pair.get() {
            pair.expect_end();
        }
    }
}

impl Handler for Link {
    fn requested(&self, _: u64, _: SocketAddr, _: SocketAddr, _: Message) -> Answer {
        Answer::Refused
    }

    fn received(&self, message: Message) {
        let is_open = self.is_open.lock();
        if !*is_open {
            return;
        }
        let stage = self.state.lock().stage;
        match (message.kind, stage) {
            (Kind::Reply, Stage::Requesting) => self.on_reply(message),
            (Kind::Ready, Stage::Accepted) => {
                let mut state = self.state.lock();
                // The queue pair can have failed in the meantime.
                if state.stage == Stage::Accepted {
                    self.establish(&mut state, Vec::new());
                }
            }
            (Kind::Reject, Stage::Requesting) => {
                self.fail(&mut self.state.lock(), libc::ECONNREFUSED, message.private_data);
            }
            // The peer has ended the connection, or breaks the protocol.
            _ => self.expect_end(),
        }
    }

    fn failed(&self, is_refused: bool) {
        let is_open = self.is_open.lock();
        if *is_open {
            let error = if is_refused { libc::ECONNREFUSED } else { libc::ETIMEDOUT };
            self.fail(&mut self.state.lock(), error, Vec::new());
        }
    }

    fn closed(&self) {
        let is_open = self.is_open.lock();
        if *is_open {
            self.expect_end();
        }
    }
}

/// Time without a lane after which a connection ends.
const LANE_TIMEOUT: Duration = Duration::from_secs(5);
