//! The thread of the server. Its turn is [`Core::turn`]:
//!
//! ```text
//! receive from every ready connection → handle every complete request
//!                                     → the volume completes now or later → one send per connection
//! ```
//!
//! | file | purpose |
//! |---|---|
//! | [`clients`] | the connections |
//! | [`sockets`] | accepts, receives, sends, and closes |
//! | [`jobs`] | requests at the volume |
//!
//! Invariant: this thread blocks only in the turn of the reactor.

mod clients;
mod jobs;
mod sockets;

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use isolane_memory::{PAGE_SIZE, Pool};
use isolane_reactor::{Event, Reactor, Token, Waker};
use isolane_volume::{Request, ServerCore, Shutdown, VolumeQueue};
use slotmap::{DefaultKey, SlotMap};

use self::clients::{Clients, TICK};
use self::jobs::{Job, OWN_BYTES, Orphans, SHARED_BYTES, Status, Waiting};
use self::sockets::MAX_CONNECTIONS;
use crate::Export;
use crate::config::{ServerConfig, StartError};
use crate::connection::MAX_REQUESTS;
use crate::listen::Listener;

/// State of the thread.
pub(crate) struct Core {
    /// Before the reactor, which waits for the operations of the volume when it is dropped.
    queue: VolumeQueue,
    listeners: Vec<(Listener, Token)>,
    /// When to accept again after the system ran out of descriptors.
    accept_after: Option<Instant>,
    clients: Clients,
    /// Requests at the volume, by their tags.
    jobs: SlotMap<DefaultKey, Job>,
    /// Requests at the volume of closed connections.
    orphans: HashMap<DefaultKey, Orphans>,
    /// Reads and writes that wait for shared memory, first come, first served.
    waiting: VecDeque<Waiting>,
    /// Requests for the allocation, some of which each turn handles.
    statuses: VecDeque<Status>,
    /// Connections with output.
    dirty: Vec<DefaultKey>,
    export: Arc<Export>,
    pool: Pool,
    overflow: Vec<u8>,
    reactor: Reactor,
    events: Vec<Event>,
    now: Instant,
    next_tick: Instant,
    shutdown: Shutdown,
}

impl ServerCore for Core {
    fn waker(&self) -> Waker {
        self.reactor.waker()
    }

    fn turn(&mut self) -> std::io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        let deadline = self.deadline();
        let turned = self.reactor.turn(deadline, &mut events);
        self.now = self.reactor.now();
        self.queue.begin_turn(self.now);
        for event in events.drain(..) {
            self.handle_event(event);
        }
        self.events = events;
        self.complete_jobs();
        self.report_statuses();
        self.grant_memory();
        self.queue.end_turn(&mut self.reactor, &mut self.pool);
        self.complete_jobs();
        self.send_dirty();
        if self.now >= self.next_tick {
            self.tick();
        }
        self.poll_shutdown();
        turned
    }

    fn shutdown(&mut self) -> &mut Shutdown {
        &mut self.shutdown
    }
}

impl Core {
    pub fn new(
        config: ServerConfig,
        listeners: Vec<Listener>,
        shutdown: Shutdown,
    ) -> Result<Core, StartError> {
        let ServerConfig { volume, name, reactor, .. } = config;
        let mut reactor = Reactor::new(reactor)?;
        log::info!("using {}", reactor.backend_description());
        let listeners: Result<Vec<_>, std::io::Error> = listeners
            .into_iter()
            .map(|listener| reactor.watch(listener.as_fd()).map(|token| (listener, token)))
            .collect();
        let export = Export { name, description: volume.name().to_owned(), info: volume.info().clone() };
        let now = Instant::now();
        Ok(Core {
            queue: VolumeQueue::new(volume, &mut reactor),
            listeners: listeners?,
            accept_after: None,
            clients: Clients::default(),
            jobs: SlotMap::default(),
            orphans: HashMap::new(),
            waiting: VecDeque::new(),
            statuses: VecDeque::new(),
            dirty: Vec::new(),
            export: Arc::new(export),
            pool: Pool::new(POOL_BYTES / PAGE_SIZE),
            overflow: vec![0; OVERFLOW_BYTES],
            reactor,
            events: Vec::new(),
            now,
            next_tick: now + TICK,
            shutdown,
        })
    }

    /// Returns the latest start of the next turn.
    fn deadline(&mut self) -> Option<Instant> {
        let is_busy = !self.dirty.is_empty()
            || !self.statuses.is_empty()
            || (!self.waiting.is_empty() && self.can_grant());
        let is_watching =
            !self.clients.is_empty() || self.shutdown.has_begun() || self.accept_after.is_some();
        let own = [is_busy.then_some(self.now), is_watching.then_some(self.next_tick)];
        own.into_iter().chain([self.queue.deadline()]).flatten().min()
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Readable(token) => {
                if let Some(key) = self.clients.find(token) {
                    self.receive(key);
                } else if let Some(index) = self.listeners.iter().position(|(_, known)| *known == token) {
                    self.accept(index);
                } else {
                    self.queue.handle_readable(token);
                }
            }
            Event::Writable(token) => {
                if let Some(key) = self.clients.find(token)
                    && let Some(client) = self.clients.get_mut(key)
                {
                    client.is_blocked = false;
                    client.list(key, &mut self.dirty);
                }
            }
            Event::File(finished) => {
                self.queue.handle_file(finished, &mut self.reactor, &mut self.pool);
            }
            Event::Woken | Event::Accepted { .. } => {}
        }
    }

    /// Closes stalled connections, and accepts again.
    fn tick(&mut self) {
        self.next_tick = self.now + TICK;
        if self.accept_after.take_if(|after| *after <= self.now).is_some() {
            self.listeners.iter().for_each(|(_, token)| self.reactor.resume(*token));
        }
        for key in self.clients.keys() {
            let Some(client) = self.clients.get_mut(key) else { continue };
            if let Some((reason, timeout)) = client.check(self.now) {
                log::limited!(Warn, "{}: {reason} for {timeout:?}; closed", client.peer);
                self.close(key);
            }
        }
    }

    fn poll_shutdown(&mut self) {
        let is_drained = self.clients.is_empty() && self.queue.in_flight() == 0;
        if self.shutdown.begin(self.now) {
            self.begin_shutdown();
        } else if self.shutdown.end_drain(is_drained, self.now) {
            self.clients.keys().into_iter().for_each(|key| self.close(key));
            self.queue.start(Shutdown::FLUSH_TAG, Request::Flush, &mut self.reactor, &mut self.pool);
            self.complete_jobs();
        } else {
            self.shutdown.check_flush(&self.queue, self.now);
        }
    }

    /// Stops accepting, and ends all connections after the replies to their requests.
    fn begin_shutdown(&mut self) {
        for (listener, token) in std::mem::take(&mut self.listeners) {
            drop(self.reactor.remove(token));
            drop(listener);
        }
        self.clients.keys().into_iter().for_each(|key| self.end(key));
        self.next_tick = self.now + TICK;
    }
}

/// Memory of all requests and replies: what is shared, what each connection has for itself, and parts of pages.
const POOL_BYTES: usize = SHARED_BYTES + MAX_CONNECTIONS * (OWN_BYTES + MAX_REQUESTS * PAGE_SIZE);
/// Size of the receive buffer after the known destinations.
const OVERFLOW_BYTES: usize = 128 << 10;
