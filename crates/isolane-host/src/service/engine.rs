//! What whoever drives a volume holds: the client, and who waits for what.
//!
//! It takes requests from callers and futures, turns the client, and answers. It adds no protocol and no
//! policy. Invariant: every request taken is answered; the client, and with it every buffer, is dropped
//! before the answers are.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::caller::{Caller, Duty, Submission};
use super::reply::Reply;
use super::shared::Inbox;
use crate::attached::EngineStatus;
use crate::classes::{Class, Classes};
use crate::client::{ConnectionStatus, Wait};
use crate::driven::Client;
use crate::oneshot::Sender;
use crate::request::{Completion, Request};

/// Requests taken in one turn, unless one caller alone has more.
const SUBMISSIONS_PER_TURN: usize = 256;

/// The order of the fields is the order of their dropping: all buffers before the answers.
pub(crate) struct Engine {
    client: Client,
    completions: Vec<Completion>,
    replies: Replies,
    /// Callers with new answers.
    to_ring: Vec<Arc<Caller>>,
    lanes_next: Classes,
    /// Whether each request is sent by itself.
    is_single: bool,
    /// Whether the last request came from a future: then nobody turns the client but the volume's own thread.
    is_for_futures: bool,
}

/// What a future has left.
pub(super) enum Message {
    /// A request. The order of the fields is the order of their dropping: the buffer before the answer.
    Request { class: Class, request: Request, reply: Reply },
    /// Tell where the connections are.
    Describe(Sender<Whereabouts>),
}

/// Where the connections of a client are.
#[derive(Default)]
pub(super) struct Whereabouts {
    pub connections: Vec<ConnectionStatus>,
    /// Whose they are, if they are not its own.
    pub engine: Option<EngineStatus>,
}

impl Engine {
    pub(super) fn new(client: Client, is_single: bool) -> Engine {
        Engine {
            client,
            replies: Replies::default(),
            completions: Vec::with_capacity(SUBMISSIONS_PER_TURN),
            to_ring: Vec::with_capacity(SUBMISSIONS_PER_TURN),
            lanes_next: Classes { default: 0, read: 0, poll: 0 },
            is_single,
            is_for_futures: false,
        }
    }

    /// Requests taken and not answered.
    pub(super) fn outstanding(&self) -> usize {
        self.replies.outstanding
    }

    /// When the client wants to be turned even if nothing happens.
    pub(super) fn housekeeping(&self) -> Instant {
        self.client.housekeeping()
    }

    /// Whether the last request came from a future.
    pub(super) fn is_for_futures(&self) -> bool {
        self.is_for_futures
    }

    /// Takes what has been left, turns the client once, and answers.
    pub(super) fn turn(&mut self, inbox: &Inbox, wait: Wait) {
        let took_all = self.take(inbox);
        self.client.turn(&mut self.completions, if took_all { wait } else { Wait::None });
        let mut completions = std::mem::take(&mut self.completions);
        completions.drain(..).for_each(|completion| self.answer(completion));
        self.completions = completions;
        self.to_ring.drain(..).for_each(|caller| caller.ring());
    }

    /// Takes what one caller has left.
    pub(super) fn take_from(&mut self, caller: &Arc<Caller>) -> usize {
        let mut taken = 0;
        while let Some(Submission { class, request, tag }) = caller.take_submission() {
            self.submit(class, request, Reply::Caller(Duty::new(caller, tag)));
            taken += 1;
        }
        taken
    }

    /// Ends the association in order; the answers that are owed follow when this returns.
    pub(super) fn close(self) {
        let Engine { client, replies, .. } = self;
        client.close();
        drop(replies);
    }

    /// Takes a bounded number of requests. False if there may be more.
    fn take(&mut self, inbox: &Inbox) -> bool {
        let mut taken = 0;
        while taken < SUBMISSIONS_PER_TURN {
            if let Some(caller) = inbox.callers.pop() {
                caller.unlist();
                taken += self.take_from(&caller).max(1);
                self.is_for_futures = false;
            } else if let Some(message) = inbox.futures.pop() {
                self.take_message(message);
                taken += 1;
            } else {
                return true;
            }
        }
        false
    }

    fn take_message(&mut self, message: Message) {
        match message {
            Message::Request { class, request, reply } => {
                self.is_for_futures |= matches!(reply, Reply::Future(_));
                self.submit(class, request, reply);
            }
            Message::Describe(asker) => {
                let (connections, engine) = (self.client.connections(), self.client.engine());
                asker.send(Whereabouts { connections, engine });
            }
        }
    }

    fn submit(&mut self, class: Class, request: Request, reply: Reply) {
        let tag = self.replies.insert(reply);
        let class = self.client.lanes().serving(class, request.is_read());
        let lane = self.next_lane(class);
        self.client.submit_to(class, lane, request, tag);
        if self.is_single {
            self.client.transmit();
        }
    }

    /// The lanes of a class take turns.
    fn next_lane(&mut self, class: Class) -> usize {
        let count = self.client.lanes().count(class);
        let next = self.lanes_next.count_mut(class);
        *next = if *next + 1 < count { *next + 1 } else { 0 };
        *next
    }

    fn answer(&mut self, completion: Completion) {
        let Some(reply) = self.replies.take(completion.tag) else { return };
        let caller = reply.deliver(completion);
        let is_last =
            |caller: &Arc<Caller>| self.to_ring.last().is_some_and(|last| Arc::ptr_eq(last, caller));
        self.to_ring.extend(caller.filter(|caller| !is_last(caller)));
    }
}

/// Who waits for which tag.
#[derive(Default)]
struct Replies {
    places: Vec<Option<Reply>>,
    free: VecDeque<usize>,
    outstanding: usize,
}

impl Replies {
    fn insert(&mut self, reply: Reply) -> u64 {
        self.outstanding += 1;
        let index = self.free.pop_front().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[index] = Some(reply);
        index as u64
    }

    fn take(&mut self, tag: u64) -> Option<Reply> {
        let index = tag as usize;
        let reply = self.places.get_mut(index)?.take()?;
        self.free.push_back(index);
        self.outstanding -= 1;
        Some(reply)
    }
}
