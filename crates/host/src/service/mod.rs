//! What is behind a [`Volume`](crate::Volume): one client, any number of callers, and a thread for what no
//! caller waits for.
//!
//! ```text
//! caller ─ Caller::submit ─ Shared::wait ┬ try_lead ─ Engine::turn                       nobody else leads
//!                                        └ inbox ─ whoever leads ─ Engine::turn ─ bell   somebody does
//! ```
//!
//! `shared` says who drives, `lead` how long, `engine` is what is driven, `caller` is where requests go in
//! and answers come out, `spinning` how callers wait. Invariant: every request that is taken in is answered;
//! when the volume ends for any reason, the client, and with it every buffer, is dropped before the answers
//! are.

mod caller;
mod engine;
mod lead;
mod shared;
mod spinning;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;

pub(crate) use self::caller::{Caller, Submission};
use self::engine::{Engine, Message};
use self::shared::{Manner, Shared};
use crate::classes::Class;
use crate::client::{Client, ConnectionStatus, Wait};
use crate::error::ConnectError;
use crate::info::{Info, NamespaceInfo};
use crate::oneshot::{Receiver, Sender, oneshot};
use crate::options::{IoChoice, Options};
use crate::request::{Completion, Request};
use crate::uri::Uri;

/// How long the end waits for what is in flight.
const LINGER: Duration = Duration::from_secs(5);

/// How long the thread stays away while others lead.
const LOOK: Duration = Duration::from_millis(250);

/// Places that are kept for the next blocking calls.
const IDLE_CALLERS_MAX: usize = 256;

/// The callers' end.
pub(crate) struct Handle {
    pub info: Info,
    pub namespace: NamespaceInfo,
    /// Whether requests may go out together.
    pub is_batching: bool,
    pub shared: Arc<Shared>,
    /// Places of blocking calls that have ended.
    idle: ArrayQueue<Arc<Caller>>,
    waiting: Arc<Waiting>,
}

/// Who waits for the end; none once it has come. Dropping a sender tells its receiver.
type Waiting = Mutex<Option<Vec<Sender<()>>>>;

impl Handle {
    /// Hands a request to whoever leads.
    pub(crate) fn send(&self, class: Class, request: Request) -> Receiver<Completion> {
        let (reply, receiver) = oneshot();
        self.shared.leave(Message::Request { class, request, reply });
        receiver
    }

    /// Asks whoever leads where the connections are.
    pub(crate) fn ask_for_connections(&self) -> Receiver<Vec<ConnectionStatus>> {
        let (asker, receiver) = oneshot();
        self.shared.leave(Message::Describe(asker));
        receiver
    }

    /// Does one request and waits for its end.
    pub(crate) fn run(&self, class: Class, request: Request) -> Completion {
        let caller = self.idle.pop().unwrap_or_else(|| Caller::new(1));
        let submitted = caller.submit(Submission { class, request, tag: 0 });
        debug_assert!(submitted.is_ok(), "an idle place has room");
        let completion = loop {
            self.shared.wait(&caller, class == Class::Poll);
            if let Some(completion) = caller.take_completion() {
                break completion;
            }
        };
        // Where enough are kept, this one goes.
        let _ = self.idle.push(caller);
        completion
    }

    /// Ends the thread in order.
    pub(crate) async fn close(&self) {
        let (sender, ended) = oneshot();
        match &mut *self.waiting.lock() {
            Some(waiting) => waiting.push(sender),
            None => drop(sender),
        }
        self.shared.stop();
        let _: Option<()> = ended.await;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// Tells the end of the thread, also when it ends by a panic.
struct Ending(Arc<Waiting>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().take();
    }
}

/// Starts the volume's thread; it answers with a handle or with the reason why there is none.
pub(crate) fn start(
    uri: Uri,
    options: Options,
) -> Result<Receiver<Result<Handle, ConnectError>>, ConnectError> {
    let (sender, receiver) = oneshot();
    let thread = thread::Builder::new().name("isolane-lane".to_owned());
    let spawned = thread.spawn(move || match connect(&uri, options) {
        Ok(handle) => {
            let shared = Arc::clone(&handle.shared);
            let _ending = Ending(Arc::clone(&handle.waiting));
            sender.send(Ok(handle));
            run(&shared);
        }
        Err(error) => sender.send(Err(error)),
    });
    spawned.map_err(|source| ConnectError::System { what: "a thread", source: Arc::new(source) })?;
    Ok(receiver)
}

fn connect(uri: &Uri, mut options: Options) -> Result<Handle, ConnectError> {
    let is_inline = options.inline && options.io != IoChoice::Uring;
    if is_inline {
        // A ring belongs to one thread.
        options.io = IoChoice::Epoll;
    }
    let manner = Manner { is_inline, mode: options.mode, spin: options.spin };
    let is_batching = options.batching;
    let client = Client::connect(uri, options)?;
    let (info, namespace, waker) = (client.info().clone(), client.namespace().clone(), client.waker());
    let shared = Shared::new(Engine::new(client, !is_batching), waker, manner);
    shared.adopt_thread();
    Ok(Handle {
        info,
        namespace,
        is_batching,
        shared: Arc::new(shared),
        idle: ArrayQueue::new(IDLE_CALLERS_MAX),
        waiting: Arc::new(Mutex::new(Some(Vec::new()))),
    })
}

/// The thread's life: it leads where no caller does, and looks after the client while nobody asks for
/// anything.
fn run(shared: &Shared) {
    while !shared.is_stopping() {
        let next = shared.try_lead().and_then(|mut lead| lead.serve_all());
        if !shared.is_stopping() {
            let now = Instant::now();
            thread::park_timeout(next.map_or(LOOK, |next| next.saturating_duration_since(now)));
        }
    }
    end(shared);
}

/// Lets what is in flight complete, for a while, and ends the association.
fn end(shared: &Shared) {
    let Some(mut lead) = shared.wait_to_lead() else { return };
    let deadline = Instant::now() + LINGER;
    let mut outstanding = lead.turn(Wait::None);
    while (outstanding > 0 || !shared.inbox.is_empty()) && Instant::now() < deadline {
        outstanding = lead.turn(Wait::Until(deadline));
    }
    lead.close();
}
