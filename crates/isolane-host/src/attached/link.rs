//! The volume at the engine: open, being opened anew after the engine was killed, or given up.
//!
//! Invariant: a link that is down has either an attempt under way or a time for the next one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::Instant;

use isolane_attach::{Session, Watcher};
use isolane_reactor::Waker;

use super::opening::{Old, Opened};
use super::{Client, opening};
use crate::client::shape::Shape;
use crate::client::task::Part;
use crate::difference::Difference;
use crate::error::{ConnectError, RequestError};

/// Whether the volume is open.
// Moved seldom, and used for every request.
#[allow(clippy::large_enum_variant)]
pub(super) enum Link {
    Up(Opened),
    Down(Outage),
    Closed(Arc<ConnectError>),
}

/// The time without it.
pub(super) struct Outage {
    since: Instant,
    /// What the engine had.
    old: Option<Old>,
    attempt: u32,
    /// When the next attempt is due, if none is under way.
    next: Instant,
    under_way: Option<mpsc::Receiver<Attempt>>,
}

type Attempt = Result<(u64, Opened), ConnectError>;

/// What becomes of the session.
pub(super) struct Signals {
    /// The engine that has the session.
    epoch: AtomicU64,
    /// The engine that the volume was opened at.
    opened: AtomicU64,
    is_over: AtomicBool,
    waker: Waker,
}

impl Signals {
    pub fn watch(session: &Session, waker: Waker, epoch: u64) -> Arc<Signals> {
        let epochs = || AtomicU64::new(epoch);
        let signals =
            Arc::new(Signals { epoch: epochs(), opened: epochs(), is_over: AtomicBool::new(false), waker });
        let watcher: Arc<dyn Watcher> = Arc::clone(&signals) as _;
        let watcher: Weak<dyn Watcher> = Arc::downgrade(&watcher);
        session.watch(watcher);
        // A restart before the watch began is not told.
        signals.epoch.fetch_max(session.epoch(), Ordering::AcqRel);
        signals
    }

    /// Whether the volume has to be opened anew, or the session is over.
    #[inline]
    pub fn have_come(&self) -> bool {
        self.epoch.load(Ordering::Acquire) != self.opened.load(Ordering::Relaxed)
            || self.is_over.load(Ordering::Acquire)
    }
}

impl Watcher for Signals {
    fn on_restarted(&self, epoch: u64) {
        self.epoch.fetch_max(epoch, Ordering::AcqRel);
        self.waker.wake();
    }

    fn on_over(&self) {
        self.is_over.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Client {
    /// Does what the session's fate asks for.
    #[cold]
    pub(super) fn see_to_link(&mut self) {
        if matches!(self.link, Link::Closed(_)) {
            return;
        }
        if self.signals.is_over.load(Ordering::Acquire) {
            let why = self
                .session
                .check()
                .err()
                .map_or_else(|| "its session is over".to_owned(), |error| error.to_string());
            return self.give_up(ConnectError::Engine(why));
        }
        if matches!(self.link, Link::Up(_)) {
            self.lose();
        }
        self.go_on_opening();
    }

    /// The engine was killed. What it has answered is taken, and the rest submitted anew, later.
    fn lose(&mut self) {
        if let Err(error) = self.reap() {
            return self.give_up(error);
        }
        let now = Instant::now();
        log::info!(
            "{}: the engine was started anew; {} requests are outstanding",
            self.info.address,
            self.tasks.len()
        );
        let down = Outage { since: now, old: None, attempt: 0, next: now, under_way: None };
        let link = std::mem::replace(&mut self.link, Link::Down(down));
        if let (Link::Up(opened), Link::Down(outage)) = (link, &mut self.link) {
            outage.old = Some(opened.into_old());
        }
    }

    fn go_on_opening(&mut self) {
        let Link::Down(outage) = &mut self.link else { return };
        if let Some(under_way) = &outage.under_way {
            match under_way.try_recv() {
                Ok(Ok((epoch, opened))) => self.on_opened(epoch, opened),
                Ok(Err(error)) => self.on_refused(error),
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => {
                    self.give_up(ConnectError::Engine("the thread that asks it has ended".to_owned()));
                }
            }
        } else if Instant::now() >= outage.next {
            self.begin_opening();
        }
    }

    /// On a thread of its own: the engine may take its time.
    fn begin_opening(&mut self) {
        let waker = self.waker();
        let Link::Down(outage) = &mut self.link else { return };
        let (sender, receiver) = mpsc::sync_channel(1);
        let (opening, session, flag) = (Arc::clone(&self.opening), self.session.clone(), self.bed.place());
        let old = outage.old.take();
        let attempt = move || {
            let _ = sender.send(opening.open(&session, flag, old));
            waker.wake();
        };
        (outage.attempt, outage.under_way) = (outage.attempt + 1, Some(receiver));
        let thread = std::thread::Builder::new().name("isolane-reopen".to_owned()).spawn(attempt);
        if let Err(error) = thread {
            self.give_up(opening::system("a thread", error));
        }
    }

    fn on_opened(&mut self, epoch: u64, mut opened: Opened) {
        let namespace = match opened.info.choose(Some(self.namespace.nsid)) {
            Ok(namespace) => namespace.clone(),
            Err(error) => return self.give_up(error),
        };
        let (now, before) = ((&opened.info, &namespace), (&self.info, &self.namespace));
        if let Some(difference) = Difference::of_volume(now, before) {
            return self.give_up(ConnectError::VolumeChanged(difference));
        }
        let part_blocks = self.shape.part_blocks;
        match Shape::of(&namespace, &opened.info).map(|shape| shape.within(self.slots.bytes())) {
            // Parts are numbered by their length.
            Ok(shape) if shape.part_blocks < part_blocks && self.tasks.len() > 0 => {
                let difference = Difference::CommandBlocks(part_blocks, shape.part_blocks);
                return self.give_up(ConnectError::VolumeChanged(difference));
            }
            Ok(shape) => self.shape = Shape { part_blocks: part_blocks.min(shape.part_blocks), ..shape },
            Err(error) => return self.give_up(error),
        }
        log::info!("{}: the volume is open again", self.info.address);
        self.signals.opened.store(epoch, Ordering::Relaxed);
        self.namespace = namespace;
        self.info = opened.info.clone();
        self.slots.repeat(&mut opened.submissions);
        self.link = Link::Up(opened);
        self.pump();
    }

    fn on_refused(&mut self, error: ConnectError) {
        let Link::Down(outage) = &mut self.link else { return };
        let (now, reconnect) = (Instant::now(), &self.opening.options.reconnect);
        let is_over = reconnect.give_up_after.is_some_and(|after| now >= outage.since + after);
        if is_over || self.session.check().is_err() {
            return self.give_up(error);
        }
        let pause = reconnect.pause(outage.attempt);
        outage.next = now + pause;
        outage.under_way = None;
        log::info!(
            "{}: the volume is not open again: {error}; next in {} ms",
            self.info.address,
            pause.as_millis()
        );
    }

    /// When to look again at a link that is down.
    pub(super) fn link_due(&self) -> Option<Instant> {
        match &self.link {
            Link::Down(outage) if outage.under_way.is_none() => Some(outage.next),
            _ => None,
        }
    }

    /// There will be no volume any more: every request fails.
    #[cold]
    pub(super) fn give_up(&mut self, error: ConnectError) {
        log::error!("{}: {error}", self.info.address);
        let error = Arc::new(error);
        self.link = Link::Closed(Arc::clone(&error));
        self.backlog.clear();
        for (mark, buffer) in self.slots.drain() {
            let part = Part::of_mark(mark);
            let Some(task) = self.tasks.get_mut(part.task) else { continue };
            task.return_piece(part.part, buffer);
        }
        let Client { tasks, finished, .. } = self;
        finished.extend(tasks.drain().map(|mut task| {
            let is_uncertain = task.in_flight > 0 && task.operation.changes_blocks();
            task.fail(match is_uncertain {
                true => RequestError::Uncertain,
                false => RequestError::Lost(Arc::clone(&error)),
            });
            (task.left, task.in_flight) = (0, 0);
            task.finish()
        }));
    }
}
