//! Volume for asynchronous callers, with any number of clones and any executor.
//!
//! A thread drives the [`Client`](crate::Client), so keep alive and reconnecting do not depend on the
//! callers. A call takes the buffer and returns it with the result.
//!
//! A volume has one service, or one on each of several cores (H3). Without cores, any waiting caller may drive
//! the only client in its own thread. With cores, a caller drives only the client on its core, and queues its
//! requests for the others. A flush goes through every association, because each controller answers for the
//! writes that it has completed.
//!
//! Invariants: a dropped future cancels nothing; its buffer stays with the client until the response has
//! arrived or the connection is dead; all services have the same volume; every accepted request gets a
//! completion.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use isolane_memory::Buffer;
use isolane_observe::observable::{Observable, SnapshotSource};
use isolane_observe::snapshot::Snapshot;
use oneshot::AsyncReceiver;
use pollster::block_on;

use crate::caller_queue::{CallerQueue, Submission};
use crate::connect::fence::Fences;
use crate::cores::Cores;
use crate::difference::Difference;
use crate::error::{ConnectError, RequestError};
use crate::info::{ConnectionStatus, EngineStatus, Info, NamespaceInfo};
use crate::lane_class::{LaneClass, LaneCounts};
use crate::observed::{Observed, ObservedClient};
use crate::options::Options;
use crate::reply::Reply;
use crate::request::{BlockRange, Completion, Request};
use crate::service::{CallerCore, Service, ServiceMap, ServiceOwner, WaitLimit, flush_class, on_core};
use crate::uri::Uri;

/// A remote volume.
#[derive(Clone)]
pub struct Volume {
    shared: Arc<Shared>,
    /// LaneClass of all requests. `None`: the class of each request.
    pub(crate) class: Option<LaneClass>,
}

/// State of all clones of a volume.
struct Shared {
    info: Info,
    namespace: NamespaceInfo,
    services: Vec<ServiceOwner>,
    /// `None` without cores.
    map: Option<ServiceMap>,
    observed: Arc<Observed>,
}

impl Volume {
    /// Connects.
    ///
    /// With [`Options::cores`], or cores in the URI, the volume has an association on each of them, whose
    /// lanes are driven only there (H3). The lanes of each class are distributed from the first core upward.
    /// A request goes to the core that its caller runs on, if it has a lane of its class, otherwise to
    /// another core; callers on other cores are spread over all. So pin the threads that submit to those
    /// cores.
    ///
    /// A write completed through one association is visible through all. A flush goes through each of them.
    /// Writes wait for the [`fence`](crate::fence)s of all. The loss of an association does not affect the
    /// others: only its own requests, and flushes, wait or fail.
    ///
    /// # Errors
    /// [`ConnectError`], with the core if there are several.
    pub async fn connect(uri: &Uri, options: Options) -> Result<Volume, ConnectError> {
        if options.lanes == 0 {
            return Err(ConnectError::no_default_lane());
        }
        let (mut placed, fences) = (place(uri, options).into_iter(), Arc::<Fences>::default());
        // The first service chooses the volume, and all others must find the same.
        let start = |uri: &Uri, (core, options): (Option<usize>, Options)| {
            Service::start(uri.clone(), options, core, Arc::clone(&fences))
        };
        let Some(first) = placed.next() else { return Err(ConnectError::no_default_lane()) };
        let uri = Uri { cores: Cores::default(), ..uri.clone() };
        let service = start(&uri, first)?.await?;
        let (mut info, namespace) = (service.info.clone(), service.namespace.clone());
        let uri = Uri { nqn: Some(info.nqn), nsid: Some(namespace.nsid), ..uri };
        let others: Vec<_> = placed.map(|placed| start(&uri, placed)).collect::<Result<_, _>>()?;
        let mut services = vec![service];
        for other in others {
            let other = other.await?;
            let (theirs, ours) = ((&other.info, &other.namespace), (&info, &namespace));
            if let Some(difference) = Difference::of_volume(theirs, ours) {
                return Err(on_core(other.core, ConnectError::DifferentVolume(difference)));
            }
            services.push(other);
        }
        let lanes_by_core =
            services.iter().map(|service| Some((service.core?, service.info.negotiated.lanes)));
        let map = lanes_by_core.collect::<Option<Vec<_>>>().map(|lanes| ServiceMap::new(&lanes));
        if let Some(map) = &map {
            info.negotiated.lanes = map.lanes();
        }
        let clients = services.iter();
        let clients =
            clients.map(|service| ObservedClient { core: service.core, cells: service.cells.clone() });
        let observed = Observed::new(&info, &namespace, clients.collect());
        Ok(Volume { shared: Arc::new(Shared { info, namespace, services, map, observed }), class: None })
    }

    /// Returns a handle that submits to a class of lanes: [`LaneClass::Poll`] for urgent requests, whose callers
    /// never sleep while they drive the client. Without a class, reads go to the read class and all other
    /// requests to the default class.
    pub fn with_class(&self, class: LaneClass) -> Volume {
        Volume { shared: Arc::clone(&self.shared), class: Some(class) }
    }

    /// Description of the target, as of the first connection; with cores, of the first one, and the lanes of
    /// all.
    pub fn info(&self) -> &Info {
        &self.shared.info
    }

    /// The namespace of the volume.
    pub fn namespace(&self) -> &NamespaceInfo {
        &self.shared.namespace
    }

    /// Status of every connection. Empty while the association is down, or if an [engine](Volume::engine)
    /// owns the connections. The leader drives all connections of a core.
    pub async fn connections(&self) -> Vec<ConnectionStatus> {
        let replies: Vec<_> = self.services().map(Service::request_status).collect();
        let mut connections = Vec::new();
        for (at, (service, reply)) in self.services().zip(replies).enumerate() {
            for mut status in reply.await.unwrap_or_default().connections {
                status.core = service.core;
                // Lanes are numbered in the order in which the cores received them.
                let count = self.shared.services.len();
                status.lane = status.lane.map(|(class, lane)| (class, lane * count + at));
                connections.push(status);
            }
        }
        connections
    }

    /// The engine that has the volume; see [`Client::engine`](crate::Client::engine).
    pub async fn engine(&self) -> Option<EngineStatus> {
        // A volume at an engine has one service.
        self.services().next()?.request_status().await.ok()?.engine
    }

    /// Returns the latencies of the requests so far, by operation, size class, and core, with their stages. It
    /// reads numbers that the cores write, and disturbs none of them.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.observed.snapshot()
    }

    /// Returns the size of the volume in bytes.
    pub fn size(&self) -> u64 {
        self.namespace().len_bytes()
    }

    /// Returns the size of a logical block in bytes; offsets and lengths are multiples of it.
    pub fn block_size(&self) -> u32 {
        self.namespace().block_bytes
    }

    /// Reads `buffer.len()` bytes at `offset_bytes`.
    pub fn read(&self, offset_bytes: u64, buffer: Buffer) -> Transfer {
        match self.lba(offset_bytes) {
            Ok(lba) => self.transfer(Request::Read { lba, buffer }),
            Err(error) => Transfer::failed(error, buffer),
        }
    }

    /// Writes `buffer.len()` bytes at `offset_bytes`. They are durable after a later [`Volume::flush`].
    pub fn write(&self, offset_bytes: u64, buffer: Buffer) -> Transfer {
        self.write_with(offset_bytes, buffer, false)
    }

    /// Writes `buffer.len()` bytes at `offset_bytes` and makes them durable (Force Unit Access).
    pub fn write_durable(&self, offset_bytes: u64, buffer: Buffer) -> Transfer {
        self.write_with(offset_bytes, buffer, true)
    }

    /// Makes every completed write durable.
    pub fn flush(&self) -> Action {
        self.action(Ok(Request::Flush))
    }

    /// Zeroes a range without sending zeroes; the target may release the space.
    pub fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> Action {
        let range = self.range(offset_bytes, len_bytes);
        self.action(range.map(|range| Request::WriteZeroes { range, fua: false, deallocate: true }))
    }

    /// Deallocates a range, whose content is no longer needed.
    pub fn deallocate(&self, offset_bytes: u64, len_bytes: u64) -> Action {
        self.action(self.deallocation(offset_bytes, len_bytes))
    }

    /// Completes requests in flight and shuts the controller down. Otherwise this happens in the background
    /// after the last clone is dropped.
    pub async fn close(self) {
        let exits: Vec<_> = self.services().map(Service::close).collect();
        for exit in exits {
            // Fails once the thread has ended.
            let _ = exit.await;
        }
    }

    fn write_with(&self, offset_bytes: u64, buffer: Buffer, fua: bool) -> Transfer {
        match self.lba(offset_bytes) {
            Ok(lba) => self.transfer(Request::Write { lba, buffer, fua }),
            Err(error) => Transfer::failed(error, buffer),
        }
    }

    pub(crate) fn deallocation(&self, offset_bytes: u64, len_bytes: u64) -> Result<Request, RequestError> {
        let whole = self.range(offset_bytes, len_bytes)?;
        let step = u64::from(u32::MAX) & !0xfff;
        let starts = (0..whole.blocks).step_by(step as usize);
        let ranges = starts
            .map(|start| BlockRange { lba: whole.lba + start, blocks: (whole.blocks - start).min(step) });
        Ok(Request::Deallocate { ranges: ranges.collect() })
    }

    pub(crate) fn lba(&self, bytes: u64) -> Result<u64, RequestError> {
        let block_bytes = self.block_size();
        match bytes % u64::from(block_bytes) {
            0 => Ok(bytes / u64::from(block_bytes)),
            _ => Err(RequestError::Unaligned { bytes, block_bytes }),
        }
    }

    pub(crate) fn range(&self, offset_bytes: u64, len_bytes: u64) -> Result<BlockRange, RequestError> {
        Ok(BlockRange { lba: self.lba(offset_bytes)?, blocks: self.lba(len_bytes)? })
    }

    fn transfer(&self, request: Request) -> Transfer {
        Transfer(self.send(request))
    }

    fn action(&self, request: Result<Request, RequestError>) -> Action {
        Action(match request {
            Ok(request) => self.send(request),
            Err(error) => ready(Completion { tag: 0, result: Err(error), buffer: None }),
        })
    }

    /// Executes one request, waits for its completion, and drops its buffer.
    pub(crate) fn run(&self, request: Request) -> Result<(), RequestError> {
        if self.is_broadcast(&request) {
            return block_on(self.action(Ok(request)));
        }
        let class = self.class.unwrap_or_else(|| request.lane_class());
        let caller = self.caller_core();
        let index = self.route(caller, class, request.is_read());
        let (service, may_lead) = (&self.shared.services[index], caller.is_at(index));
        let queue = service.idle_callers.pop().unwrap_or_else(|| CallerQueue::new(1));
        let submitted = queue.submit(Submission { class, request, tag: 0 });
        debug_assert!(submitted.is_ok(), "an idle queue is empty");
        let completion = loop {
            service.wait(&queue, 1, WaitLimit { polls: class == LaneClass::Poll, deadline: None }, may_lead);
            queue.on_running();
            if let Some(completion) = queue.take_completion() {
                break completion;
            }
        };
        // Dropped if enough are kept.
        let _ = service.idle_callers.push(queue);
        completion.result
    }

    /// Queues a request for the leader.
    fn send(&self, request: Request) -> AsyncReceiver<Completion> {
        let class = self.class.unwrap_or_else(|| request.lane_class());
        let (sender, receiver) = oneshot::async_channel();
        if self.is_broadcast(&request) {
            self.flush_all(class, Reply::Future(sender));
        } else {
            let service = self.route(self.caller_core(), class, request.is_read());
            self.shared.services[service].post(class, request, Reply::Future(sender));
        }
        receiver
    }

    /// Flushes through every association. The reply is delivered when all have completed.
    pub(crate) fn flush_all(&self, class: LaneClass, reply: Reply) {
        let class_of = |service: &Service| flush_class(&service.info.negotiated.lanes, class);
        let services = self.services().filter_map(|service| Some((service, class_of(service)?)));
        let services: Vec<_> = services.collect();
        for ((service, class), part) in services.iter().zip(reply.split(services.len())) {
            service.post(*class, Request::Flush, part);
        }
    }

    pub(crate) fn services(&self) -> impl Iterator<Item = &Service> {
        self.shared.services.iter().map(|service| &**service)
    }

    /// Returns the core of the calling thread.
    #[inline]
    pub(crate) fn caller_core(&self) -> CallerCore {
        self.shared.map.as_ref().map_or(CallerCore::ANY, ServiceMap::caller_core)
    }

    /// Returns the index of the service for a request.
    #[inline]
    pub(crate) fn route(&self, caller: CallerCore, class: LaneClass, is_read: bool) -> usize {
        self.shared.map.as_ref().map_or(0, |map| map.service(caller, class, is_read))
    }

    /// Returns whether a request goes through every association.
    #[inline]
    pub(crate) fn is_broadcast(&self, request: &Request) -> bool {
        self.shared.services.len() > 1 && matches!(request, Request::Flush)
    }
}

impl Observable for Volume {
    fn source(&self) -> Arc<dyn SnapshotSource> {
        self.shared.observed.source()
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Info { address, nqn, .. } = self.info();
        let mut fields = formatter.debug_struct("Volume");
        fields.field("address", address).field("nqn", &nqn.as_str()).field("nsid", &self.namespace().nsid);
        fields.field("size", &self.size()).field("class", &self.class).finish()
    }
}

/// A read or a write in progress; its output is the buffer.
#[must_use = "it yields the result and the buffer"]
pub struct Transfer(AsyncReceiver<Completion>);

impl Transfer {
    fn failed(error: RequestError, buffer: Buffer) -> Transfer {
        Transfer(ready(Completion { tag: 0, result: Err(error), buffer: Some(buffer) }))
    }
}

impl Future for Transfer {
    type Output = Result<Buffer, TransferError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|completion| match completion {
            Ok(Completion { result: Ok(()), buffer: Some(buffer), .. }) => Ok(buffer),
            Ok(Completion { result, buffer, .. }) => {
                Err(TransferError { error: result.err().unwrap_or(RequestError::Closed), buffer })
            }
            Err(_) => Err(TransferError { error: RequestError::Closed, buffer: None }),
        })
    }
}

/// A flush, zeroing, or deallocation in progress.
#[must_use = "it yields the result"]
pub struct Action(AsyncReceiver<Completion>);

impl Future for Action {
    type Output = Result<(), RequestError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let completion = Pin::new(&mut self.0).poll(context);
        completion
            .map(|completion| completion.map_or(Err(RequestError::Closed), |completion| completion.result))
    }
}

/// A read or write that failed, with its buffer.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct TransferError {
    /// The error.
    #[source]
    pub error: RequestError,
    /// The buffer, with undefined content after a failed read; `None` only if the volume's thread has ended.
    pub buffer: Option<Buffer>,
}

/// Returns the core and the options of each service.
fn place(uri: &Uri, options: Options) -> Vec<(Option<usize>, Options)> {
    let cores = if options.cores.is_empty() { uri.cores.clone() } else { options.cores.clone() };
    if cores.is_empty() {
        return vec![(None, options)];
    }
    let split = options.classes().split_across(cores.as_slice().len());
    let on_core = |(&core, lanes): (&usize, LaneCounts)| {
        let (lanes, read_lanes, poll_lanes) = (lanes.default, lanes.read, lanes.poll);
        (Some(core), Options { lanes, read_lanes, poll_lanes, cores: Cores::default(), ..options.clone() })
    };
    cores.as_slice().iter().zip(split).map(on_core).collect()
}

fn ready(completion: Completion) -> AsyncReceiver<Completion> {
    let (sender, receiver) = oneshot::async_channel();
    let sent = sender.send(completion);
    debug_assert!(sent.is_ok(), "the receiver exists");
    receiver
}

#[cfg(test)]
mod tests {
    use pollster::block_on;

    use super::*;
    use crate::mock::{Fault, Script, Target};
    use crate::options::Reconnect;

    fn pair() -> (Target, Volume) {
        let target = Target::start(Script::default());
        let options = Options { lanes: 2, depth: 16, ..Options::default() };
        let volume = block_on(Volume::connect(&target.uri(), options)).unwrap();
        (target, volume)
    }

    #[test]
    fn returns_buffer_with_result() {
        let (target, volume) = pair();
        assert_eq!((volume.block_size(), volume.size()), (512, 4 << 20));
        let mut buffer = Buffer::contiguous(1024);
        buffer.as_mut_slice().unwrap().fill(6);
        let buffer = block_on(volume.write(512, buffer)).unwrap();
        let buffer = block_on(volume.write_durable(2048, buffer)).unwrap();
        block_on(volume.flush()).unwrap();
        block_on(volume.write_zeroes(1024, 512)).unwrap();
        block_on(volume.deallocate(0, 512)).unwrap();
        let buffer = block_on(volume.read(512, buffer)).unwrap();
        assert_eq!(buffer.to_vec(), [[6; 512], [0; 512]].concat());
        block_on(volume.close());
        assert_eq!(target.shared.shutdowns.load(std::sync::atomic::Ordering::SeqCst), 1);
    }

    #[test]
    fn many_futures_are_on_their_way_at_once() {
        let (_target, volume) = pair();
        let writes: Vec<_> = (0..200).map(|at| volume.write(at * 512, Buffer::contiguous(512))).collect();
        for write in writes {
            assert_eq!(block_on(write).unwrap().len(), 512);
        }
    }

    #[test]
    fn each_class_has_lanes_of_its_own() {
        let target = Target::start(Script::default());
        let options = Options { read_lanes: 2, poll_lanes: 1, ..Options::default() };
        let volume = block_on(Volume::connect(&target.uri(), options)).unwrap();
        for at in 0..4 {
            block_on(volume.read(at * 512, Buffer::contiguous(512))).unwrap();
        }
        block_on(volume.write(0, Buffer::contiguous(512))).unwrap();
        block_on(volume.with_class(LaneClass::Poll).read(0, Buffer::contiguous(512))).unwrap();
        let mut queues: Vec<u16> = target.shared.queues.lock().iter().map(|&(qid, _)| qid).collect();
        assert_eq!(queues.pop(), Some(4), "the poll class");
        assert_eq!(queues.pop(), Some(1), "the write");
        queues.sort_unstable();
        assert_eq!(queues, [2, 2, 3, 3], "reads take turns");
    }

    #[test]
    fn dropped_future_cancels_nothing() {
        let (target, volume) = pair();
        let mut buffer = Buffer::contiguous(512);
        buffer.as_mut_slice().unwrap().fill(9);
        drop(volume.write(0, buffer));
        block_on(volume.close());
        assert_eq!(target.shared.landed.lock().clone(), [(0, 9)]);
    }

    #[test]
    fn last_clone_closes_connection() {
        let (target, volume) = pair();
        let clone = volume.clone();
        drop(volume);
        assert!(block_on(clone.read(0, Buffer::contiguous(512))).is_ok());
        drop(clone);
        for _ in 0..500 {
            if target.shared.controllers.lock().is_empty() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("the controller is still there");
    }

    #[test]
    fn failure_returns_buffer() {
        let (_target, volume) = pair();
        let failed = block_on(volume.read(100, Buffer::contiguous(512))).unwrap_err();
        assert!(matches!(failed.error, RequestError::Unaligned { bytes: 100, .. }));
        assert_eq!(failed.buffer.unwrap().len(), 512);
        let failed = block_on(volume.read(4 << 20, Buffer::contiguous(512))).unwrap_err();
        assert!(matches!(failed.error, RequestError::OutOfRange { .. }));
        assert!(matches!(block_on(volume.write_zeroes(0, 5)), Err(RequestError::Unaligned { .. })));
    }

    #[test]
    fn loss_without_reconnect_fails_requests() {
        let target = Target::start(Script::default());
        let options = Options { reconnect: Reconnect::never(), ..Options::default() };
        let volume = block_on(Volume::connect(&target.uri(), options)).unwrap();
        target.inject(0, Fault::Close);
        for _ in 0..2 {
            let failed = block_on(volume.read(0, Buffer::contiguous(512))).unwrap_err();
            assert!(matches!(failed.error, RequestError::Lost(_)), "{failed}");
            assert!(failed.buffer.is_some());
        }
    }

    #[test]
    fn futures_may_move_between_threads() {
        fn assert_send<T: Send>() {}
        assert_send::<Transfer>();
        assert_send::<Action>();
        assert_send::<Volume>();
    }
}
