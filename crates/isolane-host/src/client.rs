//! Client that its caller drives: over a direct association, or through an isolated engine.

use std::sync::Arc;
use std::time::Instant;

use isolane_observe::observable::{Observable, SnapshotSource};
use isolane_observe::snapshot::Snapshot;
use isolane_observe::stage as observe;
use isolane_proto::host::Data;
use isolane_reactor::Waker;
use rustix::fd::BorrowedFd;

use crate::caller_queue::{CallerQueue, ReplyGuard, Submission};
use crate::client_state::ClientState;
use crate::connect::Plan;
use crate::connect::fence::Fences;
use crate::connect::journal::{AssociationJournal, StaleAssociation};
use crate::direct::{Direct, command};
use crate::error::ConnectError;
use crate::info::{ConnectionStatus, EngineStatus, Info, NamespaceInfo};
use crate::lane_class::{LaneClass, LaneCounts};
use crate::observed::{Observed, ObservedClient};
use crate::observer::{Observer, RequestTimes};
use crate::operation::Operation;
use crate::options::Options;
use crate::reply::Reply;
use crate::request::Request;
use crate::unflushed::Era;
use crate::uri::Uri;
use crate::via_engine::EngineVolume;

/// One volume, driven by its caller: over its own association or, with [`Options::via`] or `?via=engine` in the
/// URI, through an isolated engine.
///
/// ```no_run
/// use isolane_host::{Buffer, Client, Options, Request, Wait};
///
/// # fn main() -> Result<(), isolane_host::ConnectError> {
/// let uri = "nvme+tcp://127.0.0.1:4420".parse().expect("a well-formed URI");
/// let mut client = Client::connect(&uri, Options::default())?;
/// for tag in 0..32 {
///     client.submit(0, Request::Read { lba: tag * 8, buffer: Buffer::contiguous(4096) }, tag);
/// }
/// let mut completions = Vec::new();
/// while completions.len() < 32 {
///     client.turn(&mut completions, Wait::Forever);
/// }
/// client.close();
/// # Ok(())
/// # }
/// ```
///
/// It may move to another thread, but not often, because its reactor must adapt to the new thread.
///
/// A client with its own association must be turned at least twice per keep-alive timeout, or the target ends the
/// association and the client reconnects. Through an engine, the engine keeps the association alive.
pub struct Client {
    // Dropped first: connections, and with them the buffers of commands, before the replies in `state`.
    pub(crate) backend: Backend,
    pub(crate) state: ClientState,
    /// The last lane used of each class by requests that name none.
    last_lanes: LaneCounts,
    observed: Arc<Observed>,
}

// Rarely moved, and used for every request: no pointer in between.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Backend {
    Direct(Direct),
    Engine(EngineVolume),
}

/// Evaluates an expression with the client of either backend.
macro_rules! with_backend {
    ($self:expr, $client:ident => $value:expr) => {
        match $self {
            Backend::Direct($client) => $value,
            Backend::Engine($client) => $value,
        }
    };
}

impl Client {
    /// Connects and chooses the volume: the URI's namespace, or the only one.
    ///
    /// # Errors
    /// [`ConnectError::Unsupported`] if the options or the URI name cores, which need a [`Volume`](crate::Volume)
    /// with a thread on each; [`ConnectError::Attach`] and [`ConnectError::Engine`]; and the errors of connecting.
    pub fn connect(uri: &Uri, options: Options) -> Result<Client, ConnectError> {
        check_options(uri, &options)?;
        Client::connect_sharing_fences(uri, options, Arc::default())
    }

    /// Connects in place of a process that was killed, over its own association, and records every association in
    /// a journal, so that this process may be killed as well. Each of the `stale` associations goes with the key
    /// of its journal entry; all of their connections had ended before this call. No write is sent before they
    /// are known dead by the rule of [`fence`](crate::fence). If this process is killed, its connections are reset.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with_journal(
        uri: &Uri,
        options: Options,
        journal: &Arc<dyn AssociationJournal>,
        stale: &[(u64, StaleAssociation)],
    ) -> Result<Client, ConnectError> {
        let plan = Plan { journal: Some(Arc::clone(journal)), ..Plan::new(uri, options) };
        check_options(&plan.uri, &plan.options)?;
        let (direct, state) = Direct::connect(plan, Arc::default(), stale)?;
        Ok(Client::new(Backend::Direct(direct), state))
    }

    /// Connects as one of several clients of a volume, whose writes wait for the fences of each.
    pub(crate) fn connect_sharing_fences(
        uri: &Uri,
        options: Options,
        fences: Arc<Fences>,
    ) -> Result<Client, ConnectError> {
        if uri.is_via_engine(&options) {
            // The engine has the fences.
            let (engine, state) = EngineVolume::connect(uri, options)?;
            return Ok(Client::new(Backend::Engine(engine), state));
        }
        let (direct, state) = Direct::connect(Plan::new(uri, options), fences, &[])?;
        Ok(Client::new(Backend::Direct(direct), state))
    }

    fn new(backend: Backend, state: ClientState) -> Client {
        let client = ObservedClient { core: None, cells: state.requests.observer.cells().cloned() };
        let observed = Observed::new(&state.info, &state.namespace, vec![client]);
        Client { backend, state, last_lanes: LaneCounts { default: 0, read: 0, poll: 0 }, observed }
    }

    /// Description of the target, as of the last connection. Through an engine it has only the namespace that
    /// requests go to.
    pub fn info(&self) -> &Info {
        &self.state.info
    }

    /// The namespace that requests go to.
    pub fn namespace(&self) -> &NamespaceInfo {
        &self.state.namespace
    }

    /// Returns a waker that ends a waiting turn from any thread.
    pub fn waker(&self) -> Waker {
        with_backend!(&self.backend, client => client.waker())
    }

    /// Requests without a completion.
    pub fn outstanding(&self) -> usize {
        self.state.requests.outstanding()
    }

    /// Returns when the client must be turned even if nothing happens.
    pub(crate) fn housekeeping(&self) -> Instant {
        with_backend!(&self.backend, client => client.housekeeping())
    }

    /// Returns whether the association is up, or the volume is open at its engine. While it is not, requests wait.
    pub fn is_connected(&self) -> bool {
        with_backend!(&self.backend, client => client.is_connected())
    }

    /// Returns whether the client is closed for good: every request fails.
    pub fn is_closed(&self) -> bool {
        self.state.closed.is_some()
    }

    /// Returns the reason for [`Client::is_closed`].
    pub fn end_reason(&self) -> Option<&ConnectError> {
        self.state.closed.as_deref()
    }

    /// Lanes that requests are spread over, by class.
    pub fn lanes(&self) -> LaneCounts {
        self.state.lanes
    }

    /// Status of every connection of the association: the admin queue first, then lanes by class. Empty while it
    /// is down, or if an [engine](Client::engine) owns the connections. The thread that turns the client drives
    /// all of them.
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        match &self.backend {
            Backend::Direct(client) => client.connections(&self.state),
            Backend::Engine(_) => Vec::new(),
        }
    }

    /// The engine that has the volume. `None` if this process has its own association, or while the engine
    /// restarts.
    pub fn engine(&self) -> Option<EngineStatus> {
        match &self.backend {
            Backend::Direct(_) => None,
            Backend::Engine(client) => client.status(),
        }
    }

    /// Returns the latencies of the requests so far; see [`Volume::snapshot`](crate::Volume::snapshot).
    pub fn snapshot(&self) -> Snapshot {
        self.observed.snapshot()
    }

    /// The era of the target that acknowledged the last commands. A different era means that the target lost, or
    /// may have lost, acknowledged writes in between.
    pub fn era(&self) -> Era {
        self.state.unflushed.era()
    }

    /// Stops failing flushes after acknowledged writes were lost. The caller compares the [`Client::era`] of
    /// each user's writes with the era of its flush.
    pub fn leave_losses_to_caller(&mut self) {
        self.state.unflushed.leave_to_caller();
    }

    /// Records no latencies from now on, and leaves the times of all requests to the caller of
    /// [`Client::take_times`]. Has no effect without [`Options::observe`].
    pub fn leave_times_to_caller(&mut self) {
        self.state.requests.observer.leave_times_to_caller();
    }

    /// Moves the times of the completions of the last turns, in their order, to an empty list.
    pub fn take_times(&mut self, times: &mut Vec<RequestTimes>) {
        self.state.requests.observer.take_times(times);
    }

    pub(crate) fn observer(&mut self) -> &mut Observer {
        &mut self.state.requests.observer
    }

    /// Submits a request; `tag` is returned in its completion. The next turn sends it together with all others. A
    /// request that is not accepted completes with an error.
    ///
    /// `lane` is an index within the class that serves the request: reads go to the read class if it has lanes,
    /// everything else to the default class.
    #[inline]
    pub fn submit(&mut self, lane: usize, request: Request, tag: u64) {
        let class = request.lane_class();
        self.submit_to(class, lane, request, tag);
    }

    /// Submits a request to a class. If it has no lanes, another class [serves](LaneCounts::serving) the request.
    #[inline]
    pub fn submit_to(&mut self, class: LaneClass, lane: usize, request: Request, tag: u64) {
        self.submit_at(class, lane, request, tag, 0);
    }

    /// As [`Client::submit_to`], for a request that has waited since `submitted` on the [`clock`].
    ///
    /// [`clock`]: isolane_reactor::clock
    #[inline]
    pub fn submit_at(&mut self, class: LaneClass, lane: usize, request: Request, tag: u64, submitted: u64) {
        self.submit_with(class, Some(lane), request, Reply::Tag(tag), submitted);
    }

    /// Submits all requests of one caller, queued for the leader at the time `submitted` (0: by
    /// the leader), and returns their number.
    pub(crate) fn submit_all(&mut self, caller: &Arc<CallerQueue>, submitted: u64) -> usize {
        let mut count = 0;
        while let Some(Submission { class, request, tag }) = caller.take_submission() {
            let reply = Reply::Caller(ReplyGuard::new(caller, tag));
            self.submit_with(class, None, request, reply, submitted);
            count += 1;
        }
        count
    }

    /// Submits a request with any kind of reply. Without a `lane`, the lanes of its class take turns. A single
    /// command is sent with the next turn if nothing precedes it; otherwise the request is queued.
    pub(crate) fn submit_with(
        &mut self,
        class: LaneClass,
        lane: Option<usize>,
        request: Request,
        reply: Reply,
        submitted: u64,
    ) {
        let lane = lane.unwrap_or_else(|| self.next_lane(class, request.is_read()));
        let Client { backend, state, .. } = self;
        let (lane, range) = match state.check(class, lane, &request) {
            Ok(checked) => checked,
            Err(error) => return state.requests.reject(error, request, reply),
        };
        let direct = match backend {
            Backend::Direct(direct) => direct,
            Backend::Engine(engine) => return engine.accept(state, lane, range, request, reply, submitted),
        };
        let can_wait = direct.coalescer.add(class, &state.current_lanes, &request);
        if state.limits.parts(&range) == 1
            && let Some(slot) = direct.vacancy(lane)
        {
            let (requests, nsid) = (&mut state.requests, state.namespace.nsid);
            match request {
                Request::Read { buffer, .. } => {
                    let (kind, blocks) = (observe::Operation::Read, range.blocks);
                    let key = requests.observer.on_queued(submitted, can_wait, kind, blocks);
                    let tag = requests.insert_in_flight(reply, lane, range, key, || Operation::Read);
                    slot.submit(command::read(&range, nsid), Data::Read(buffer), tag);
                    return;
                }
                Request::Write { buffer, fua, .. } => {
                    let (kind, blocks) = (observe::Operation::Write, range.blocks);
                    let key = requests.observer.on_queued(submitted, can_wait, kind, blocks);
                    let write = || Operation::Write { fua };
                    let tag = requests.insert_in_flight(reply, lane, range, key, write);
                    slot.submit(command::write(&range, fua, nsid), Data::Write(buffer), tag);
                    return;
                }
                _ => {}
            }
        }
        direct.enqueue(state, lane, range, request, reply, submitted);
    }

    /// Returns the next lane of the class that serves a request.
    fn next_lane(&mut self, class: LaneClass, is_read: bool) -> usize {
        let lanes = &self.state.lanes;
        let class = lanes.serving(class, is_read);
        let last = self.last_lanes.count_mut(class);
        *last = if *last + 1 < lanes.count(class) { *last + 1 } else { 0 };
        *last
    }

    /// Returns a descriptor that becomes readable when a client that waits outside has work. `None` if it waits in
    /// io_uring or for an engine, which makes that impossible.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backend {
            Backend::Direct(client) => client.wait_fd(),
            Backend::Engine(_) => None,
        }
    }

    /// Prepares for a wait outside of the client, and returns when it must be turned even if nothing happens. Call
    /// [`Client::finish_wait`] and turn it earlier if its descriptor becomes readable or a request is submitted.
    /// Returns `None` if it must be turned now, which is always so with [`Mode::Poll`](crate::Mode::Poll).
    pub fn prepare_wait(&mut self) -> Option<Instant> {
        match &mut self.backend {
            Backend::Direct(client) => client.prepare_wait(&self.state),
            Backend::Engine(_) => None,
        }
    }

    /// Ends a wait outside of the client; without one it does nothing.
    pub fn finish_wait(&mut self) {
        match &mut self.backend {
            Backend::Direct(client) => client.finish_wait(),
            Backend::Engine(_) => {}
        }
    }

    /// Shuts the association down. Requests in flight get no completion.
    pub fn close(self) {
        with_backend!(self.backend, client => client.close());
    }
}

/// Rejects options that need a [`Volume`](crate::Volume).
fn check_options(uri: &Uri, options: &Options) -> Result<(), ConnectError> {
    if !options.cores.is_empty() || !uri.cores.is_empty() {
        let several = "cores for a client, which its one caller drives; leave them out, or connect a volume";
        return Err(ConnectError::Unsupported(several.to_owned()));
    }
    match options.lanes {
        0 => Err(ConnectError::no_default_lane()),
        _ => Ok(()),
    }
}

impl Observable for Client {
    fn source(&self) -> Arc<dyn SnapshotSource> {
        self.observed.source()
    }
}
