//! The thread behind a [`Volume`](crate::Volume): it owns the client and feeds it from a mailbox.
//!
//! It adds no protocol and no policy. Invariant: every request that reaches the mailbox is answered; when the thread ends
//! for any reason, the client, and with it every buffer, is dropped before the answers are.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use isolane_reactor::mailbox::{self, Undelivered};
use parking_lot::Mutex;

use crate::classes::{Class, Classes};
use crate::client::{Client, Wait};
use crate::error::{ConnectError, RequestError};
use crate::info::{Info, NamespaceInfo};
use crate::oneshot::{Receiver, Sender, oneshot};
use crate::options::Options;
use crate::request::{Completion, Request};
use crate::uri::Uri;

/// How long the end waits for what is in flight.
const LINGER: Duration = Duration::from_secs(5);

/// Messages taken from the mailbox in one turn.
const MESSAGES_PER_TURN: usize = 256;

/// The callers' end.
pub(crate) struct Handle {
    pub info: Info,
    pub namespace: NamespaceInfo,
    mailbox: mailbox::Sender<Message>,
    control: Arc<Control>,
}

struct Control {
    is_stopping: AtomicBool,
    /// Who waits for the end; none once it has come. Dropping a sender tells its receiver.
    waiting: Mutex<Option<Vec<Sender<()>>>>,
}

/// Tells the end of the thread, also when it ends by a panic.
struct Ending(Arc<Control>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.waiting.lock().take();
    }
}

/// The order of the fields is the order of their dropping: the buffer before the answer.
struct Message {
    class: Class,
    request: Request,
    reply: Sender<Completion>,
}

impl Handle {
    /// Hands a request to the thread.
    pub(crate) fn send(&self, class: Class, request: Request) -> Receiver<Completion> {
        let (reply, receiver) = oneshot();
        match self.mailbox.send(Message { class, request, reply }) {
            Ok(()) => {}
            Err(Undelivered::Full(message)) => message.refuse(RequestError::TooMany(MAILBOX_MESSAGES)),
            Err(Undelivered::Closed(message)) => message.refuse(RequestError::Closed),
        }
        receiver
    }

    /// Ends the thread in order.
    pub(crate) async fn close(&self) {
        let (sender, ended) = oneshot();
        match &mut *self.control.waiting.lock() {
            Some(waiting) => waiting.push(sender),
            None => drop(sender),
        }
        self.stop();
        let _: Option<()> = ended.await;
    }

    fn stop(&self) {
        self.control.is_stopping.store(true, Ordering::Release);
        self.mailbox.wake();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Message {
    fn refuse(self, error: RequestError) {
        self.reply.send(Completion { tag: 0, result: Err(error), buffer: self.request.into_buffer() });
    }
}

/// The thread's end. The client is dropped before the replies are: see the module's invariant.
pub(crate) struct Service {
    client: Client,
    mailbox: mailbox::Receiver<Message>,
    waker: isolane_reactor::Waker,
    replies: Replies,
    lanes_next: Classes,
    ending: Ending,
}

impl Service {
    /// Starts the thread; it answers with a handle or with the reason why there is none.
    pub(crate) fn start(
        uri: Uri,
        options: Options,
    ) -> Result<Receiver<Result<Handle, ConnectError>>, ConnectError> {
        let (sender, receiver) = oneshot();
        let thread = thread::Builder::new().name("isolane-lane".to_owned());
        let spawned = thread.spawn(move || match Service::connect(&uri, options) {
            Ok((service, handle)) => {
                sender.send(Ok(handle));
                service.run();
            }
            Err(error) => sender.send(Err(error)),
        });
        spawned.map_err(|source| ConnectError::System { what: "a thread", source: Arc::new(source) })?;
        Ok(receiver)
    }

    fn connect(uri: &Uri, options: Options) -> Result<(Service, Handle), ConnectError> {
        let client = Client::connect(uri, options)?;
        let (sender, receiver) = mailbox::bounded(client.waker(), MAILBOX_MESSAGES);
        let waiting = Mutex::new(Some(Vec::new()));
        let control = Arc::new(Control { is_stopping: AtomicBool::new(false), waiting });
        let handle = Handle {
            info: client.info().clone(),
            namespace: client.namespace().clone(),
            mailbox: sender,
            control: Arc::clone(&control),
        };
        let waker = client.waker();
        let replies = Replies::default();
        let lanes_next = Classes { default: 0, read: 0, poll: 0 };
        let ending = Ending(control);
        let service = Service { client, mailbox: receiver, waker, replies, lanes_next, ending };
        Ok((service, handle))
    }

    fn run(mut self) {
        let mut completions = Vec::with_capacity(MESSAGES_PER_TURN);
        while !self.ending.0.is_stopping.load(Ordering::Acquire) {
            self.turn(&mut completions, Wait::Forever);
        }
        let deadline = Instant::now() + LINGER;
        while (self.take_messages() || self.replies.outstanding > 0) && Instant::now() < deadline {
            self.turn(&mut completions, Wait::Until(deadline));
        }
        self.client.close();
    }

    fn turn(&mut self, completions: &mut Vec<Completion>, wait: Wait) {
        self.take_messages();
        self.client.turn(completions, wait);
        for completion in completions.drain(..) {
            self.replies.answer(completion);
        }
    }

    /// The lanes of a class take turns.
    fn next_lane(&mut self, class: Class) -> usize {
        let next = self.lanes_next.count_mut(class);
        *next = (*next + 1) % self.client.lanes().count(class);
        *next
    }

    /// Takes a bounded number of messages; true if any was taken.
    fn take_messages(&mut self) -> bool {
        for taken in 0..MESSAGES_PER_TURN {
            let Some(message) = self.mailbox.poll() else { return taken > 0 };
            let tag = self.replies.insert(message.reply);
            let class = self.client.lanes().serving(message.class, message.request.is_read());
            let lane = self.next_lane(class);
            self.client.submit_to(class, lane, message.request, tag);
        }
        self.waker.wake();
        true
    }
}

/// Who waits for which tag.
#[derive(Default)]
struct Replies {
    places: Vec<Option<Sender<Completion>>>,
    free: VecDeque<usize>,
    outstanding: usize,
}

impl Replies {
    fn insert(&mut self, reply: Sender<Completion>) -> u64 {
        self.outstanding += 1;
        let index = self.free.pop_front().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[index] = Some(reply);
        index as u64
    }

    fn answer(&mut self, completion: Completion) {
        let index = completion.tag as usize;
        if let Some(reply) = self.places.get_mut(index).and_then(Option::take) {
            self.free.push_back(index);
            self.outstanding -= 1;
            reply.send(completion);
        }
    }
}

/// Requests that wait in the mailbox at most.
const MAILBOX_MESSAGES: usize = 1024;
