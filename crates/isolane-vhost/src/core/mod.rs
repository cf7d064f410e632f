//! The thread of the server. Its turn is [`Core::turn`]:
//!
//! ```text
//! take requests from every notified queue → the volume completes now or later
//!                                         → results to the used rings → one notification per queue
//! ```
//!
//! | file | purpose |
//! |---|---|
//! | [`rings`] | the started queues |
//! | [`sessions`] | connections of monitors, and the messages of their control threads |
//! | [`jobs`] | requests at the volume |
//!
//! Invariant: this thread blocks only in the turn of the reactor.

mod jobs;
mod rings;
mod sessions;

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use isolane_memory::{PAGE_SIZE, Pool};
use isolane_reactor::mailbox::{self, Receiver, Sender};
use isolane_reactor::unix_listener::UnixListener;
use isolane_reactor::{Event, EventfdSignals, Reactor, Token, Waker};
use isolane_volume::{Request, ServerCore, Shutdown, VolumeQueue};
use slotmap::{DefaultKey, SlotMap};

use self::jobs::{Job, MAX_JOBS, Waiting};
use self::rings::Rings;
use self::sessions::{Session, TICK};
use crate::config::{ServerConfig, StartError};
use crate::control::Message;
use crate::descriptors::{Memories, Shares};
use crate::device::Device;

/// State of the thread.
pub(crate) struct Core {
    /// Before the reactor, which waits for the operations of the volume when it is dropped.
    queue: VolumeQueue,
    listener: Option<(UnixListener, Token)>,
    /// When to accept again after the system ran out of descriptors.
    accept_after: Option<Instant>,
    sessions: Vec<Session>,
    next_session: u64,
    /// Memories of connections that have ended, while requests use them.
    former: Vec<Memories>,
    shares: Shares,
    messages: Receiver<Message>,
    sender: Sender<Message>,
    rings: Rings,
    /// To drivers and monitors.
    signals: EventfdSignals,
    /// Requests at the volume, by their tags.
    jobs: SlotMap<DefaultKey, Job>,
    /// Changes at the volume whose queue has ended.
    orphans: usize,
    /// Reads and writes that wait for memory, first come, first served.
    waiting: VecDeque<Waiting>,
    device: Arc<Device>,
    /// Whether reads take memory of the pool.
    reads_into_pool: bool,
    /// Pages of the reads at the volume, if they take other memory.
    read_pages: usize,
    /// Whether writes go to a file. Other volumes keep or copy the pages of the pool.
    has_file: bool,
    pool: Pool,
    reactor: Reactor,
    events: Vec<Event>,
    now: Instant,
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
        self.handle_messages();
        self.complete_jobs();
        self.grant_memory();
        self.poll_rings();
        self.queue.end_turn(&mut self.reactor, &mut self.pool);
        self.complete_jobs();
        self.notify_drivers();
        if self.accept_after.take_if(|after| *after <= self.now).is_some()
            && let Some((_, token)) = &self.listener
        {
            self.reactor.resume(*token);
        }
        self.poll_shutdown();
        turned
    }

    fn shutdown(&mut self) -> &mut Shutdown {
        &mut self.shutdown
    }
}

impl Core {
    pub fn new(config: ServerConfig, listener: UnixListener, shutdown: Shutdown) -> Result<Core, StartError> {
        let ServerConfig { volume, reactor, .. } = config;
        let mut reactor = Reactor::new(reactor)?;
        log::info!("using {}", reactor.backend_description());
        let shares = Shares::current();
        let token = reactor.watch(listener.as_fd())?;
        let (sender, messages) = mailbox::unbounded(reactor.waker());
        Ok(Core {
            device: Arc::new(Device::new(volume.info().clone(), volume.identity(), shares.queues)),
            reads_into_pool: volume.reads_into_pool(),
            read_pages: 0,
            has_file: volume.file().is_some(),
            queue: VolumeQueue::new(volume, &mut reactor),
            listener: Some((listener, token)),
            accept_after: None,
            sessions: Vec::new(),
            next_session: 0,
            former: Vec::new(),
            shares,
            messages,
            sender,
            rings: Rings::default(),
            signals: EventfdSignals::new().map_err(StartError::Signals)?,
            jobs: SlotMap::default(),
            orphans: 0,
            waiting: VecDeque::new(),
            pool: Pool::new(POOL_BYTES / PAGE_SIZE),
            reactor,
            events: Vec::new(),
            now: Instant::now(),
            shutdown,
        })
    }

    /// Returns the latest start of the next turn.
    fn deadline(&mut self) -> Option<Instant> {
        let is_busy = self.can_poll_rings() || self.can_grant();
        let tick = self.shutdown.has_begun().then(|| self.now + TICK);
        let own = [is_busy.then_some(self.now), self.accept_after, tick];
        own.into_iter().chain([self.queue.deadline()]).flatten().min()
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Readable(token) => {
                if let Some(key) = self.rings.find_token(token) {
                    self.on_kick(key);
                } else if self.listener.as_ref().is_some_and(|(_, known)| *known == token) {
                    self.accept();
                } else {
                    self.queue.handle_readable(token);
                }
            }
            Event::File(finished) => {
                self.queue.handle_file(finished, &mut self.reactor, &mut self.pool);
            }
            Event::Writable(_) | Event::Woken | Event::Accepted { .. } => {}
        }
    }

    /// Whether requests can be taken from a listed queue.
    fn can_poll_rings(&self) -> bool {
        !self.shutdown.has_begun() && self.jobs.len() < MAX_JOBS && self.rings.has_listed()
    }

    fn poll_shutdown(&mut self) {
        if self.shutdown.begin(self.now) {
            if let Some((listener, token)) = self.listener.take() {
                drop(self.reactor.remove(token));
                drop(listener);
            }
        } else if self.shutdown.end_drain(self.jobs.is_empty(), self.now) {
            while let Some(session) = self.sessions.first() {
                self.close(session.number);
            }
            self.queue.start(Shutdown::FLUSH_TAG, Request::Flush, &mut self.reactor, &mut self.pool);
            self.complete_jobs();
        } else {
            self.shutdown.check_flush(&self.queue, self.now);
        }
    }
}

/// Memory of all requests.
const POOL_BYTES: usize = 128 << 20;
