//! What is behind a [`Volume`](crate::Volume): any number of callers, and one service, or one on each of
//! several cores. A service is one client and a thread for what no caller waits for.
//!
//! ```text
//! caller ─ Handle::way ─ Caller::submit ─ Shared::wait
//!            nobody else leads, and it is the caller's core: try_lead ─ Engine::turn
//!            else: inbox ─ whoever leads, or the service's thread ─ Engine::turn ─ bell
//! ```
//!
//! `handle` is the callers' end and `map` the way to a service; `shared` says who drives it, `lead` how long,
//! `engine` is what is driven, `caller` is where requests go in and answers come out, `spread` those of a
//! thread at several services, `reply` who waits for them, `spinning` how callers wait. Invariant: every
//! request that is taken in is answered; when the volume ends for any reason, the clients, and with them
//! every buffer, are dropped before the answers are.

mod caller;
mod engine;
mod handle;
mod lead;
mod map;
mod reply;
mod shared;
mod spinning;
mod spread;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use isolane_reactor::core;
use parking_lot::Mutex;

pub(crate) use self::caller::{Caller, Submission};
use self::engine::{Engine, Message, Whereabouts};
pub(crate) use self::handle::Handle;
use self::reply::Reply;
use self::shared::Manner;
pub(crate) use self::shared::{Patience, Shared};
pub(crate) use self::spread::Spread;
use crate::classes::{Class, Classes};
use crate::client::Wait;
use crate::driven::Client;
use crate::error::ConnectError;
use crate::fence::Fences;
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

/// One client, and the thread that looks after it.
pub(crate) struct Service {
    pub shared: Arc<Shared>,
    /// The core that the thread is pinned to.
    core: Option<usize>,
    lanes: Classes,
    /// Places of blocking calls that have ended.
    idle: ArrayQueue<Arc<Caller>>,
    waiting: Arc<Waiting>,
}

/// What a service is to be.
struct Place {
    uri: Uri,
    options: Options,
    core: Option<usize>,
    /// Those of all services of the volume.
    fences: Arc<Fences>,
}

/// A service, and what its target told.
struct Started {
    service: Service,
    info: Info,
    namespace: NamespaceInfo,
}

/// Who waits for the end; none once it has come. Dropping a sender tells its receiver.
type Waiting = Mutex<Option<Vec<Sender<()>>>>;

impl Service {
    /// Leaves a request for whoever leads.
    fn leave(&self, class: Class, request: Request, reply: Reply) {
        self.shared.leave(Message::Request { class, request, reply });
    }

    /// Asks whoever leads where the connections are.
    fn ask_for_connections(&self) -> Receiver<Whereabouts> {
        let (asker, receiver) = oneshot();
        self.shared.leave(Message::Describe(asker));
        receiver
    }

    /// Does one request and waits for its end. Whoever is not on the service's core may not lead.
    fn run(&self, class: Class, request: Request, may_lead: bool) -> Completion {
        let caller = self.idle.pop().unwrap_or_else(|| Caller::new(1));
        let submitted = caller.submit(Submission { class, request, tag: 0 });
        debug_assert!(submitted.is_ok(), "an idle place has room");
        let completion = loop {
            self.shared.wait(&caller, Patience { polls: class == Class::Poll, until: None }, may_lead);
            if let Some(completion) = caller.take_completion() {
                break completion;
            }
        };
        // Where enough are kept, this one goes.
        let _ = self.idle.push(caller);
        completion
    }

    /// Begins to end the thread in order; what comes back tells when that is done.
    fn stop(&self) -> Receiver<()> {
        let (sender, ended) = oneshot();
        match &mut *self.waiting.lock() {
            Some(waiting) => waiting.push(sender),
            None => drop(sender),
        }
        self.shared.stop();
        ended
    }

    /// An error, with the core that it is about.
    fn concerning(&self, error: ConnectError) -> ConnectError {
        concerning(self.core, error)
    }
}

impl Drop for Service {
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

/// Starts a service's thread; it answers with the service or with the reason why there is none.
fn start(place: Place) -> Result<impl Future<Output = Result<Started, ConnectError>>, ConnectError> {
    let ((sender, receiver), core) = (oneshot(), place.core);
    let thread = thread::Builder::new().name("isolane-lane".to_owned());
    let spawned = thread.spawn(move || match connect(place) {
        Ok(started) => {
            let shared = Arc::clone(&started.service.shared);
            let _ending = Ending(Arc::clone(&started.service.waiting));
            sender.send(Ok(started));
            run(&shared);
        }
        Err(error) => sender.send(Err(concerning(core, error))),
    });
    spawned.map_err(|source| ConnectError::System { what: "a thread", source: Arc::new(source) })?;
    Ok(async {
        let ended = "the lane's thread ended while connecting";
        receiver.await.unwrap_or_else(|| Err(ConnectError::Unsupported(ended.to_owned())))
    })
}

fn connect(Place { uri, mut options, core, fences }: Place) -> Result<Started, ConnectError> {
    if let Some(core) = core {
        core::pin(core).map_err(|source| ConnectError::Core { core, source: Arc::new(source) })?;
    }
    let is_inline = options.inline && options.io != IoChoice::Uring;
    if is_inline {
        // A ring belongs to one thread.
        options.io = IoChoice::Epoll;
    }
    let manner = Manner { is_inline, mode: options.mode, spin: options.spin };
    let is_batching = options.batching;
    let client = Client::connect_beside(&uri, options, fences)?;
    let (info, namespace, waker) = (client.info().clone(), client.namespace().clone(), client.waker());
    let lanes = client.lanes();
    let shared = Shared::new(Engine::new(client, !is_batching), waker, manner);
    shared.adopt_thread();
    let service = Service {
        shared: Arc::new(shared),
        core,
        lanes,
        idle: ArrayQueue::new(IDLE_CALLERS_MAX),
        waiting: Arc::new(Mutex::new(Some(Vec::new()))),
    };
    Ok(Started { service, info, namespace })
}

fn concerning(core: Option<usize>, error: ConnectError) -> ConnectError {
    match (core, error) {
        (Some(core), error) if !matches!(error, ConnectError::Core { .. }) => {
            ConnectError::OfCore { core, source: Box::new(error) }
        }
        (_, error) => error,
    }
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
