//! Volume for asynchronous callers, with any number of clones and any executor.
//!
//! A thread drives the [`Client`](crate::Client), so keep alive and reconnecting do not depend on the
//! callers. A call takes the buffer and returns it with the result.
//!
//! Invariant: a dropped future cancels nothing; its buffer stays with the client until the response has
//! arrived or the connection is dead.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use isolane_memory::Buffer;
use oneshot::AsyncReceiver;

use crate::driver::Services;
use crate::error::{ConnectError, RequestError};
use crate::info::{ConnectionStatus, EngineStatus, Info, NamespaceInfo};
use crate::lane_class::LaneClass;
use crate::options::Options;
use crate::request::{BlockRange, Completion, Request};
use crate::submitter::Submitter;
use crate::uri::Uri;

/// A remote volume.
#[derive(Clone)]
pub struct Volume {
    services: Arc<Services>,
    /// LaneClass of all requests. `None`: the class of each request.
    class: Option<LaneClass>,
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
        Ok(Volume { services: Arc::new(Services::connect(uri, options).await?), class: None })
    }

    /// Returns a handle that submits to a class of lanes: [`LaneClass::Poll`] for urgent requests, whose callers
    /// never sleep while they drive the client. Without a class, reads go to the read class and all other
    /// requests to the default class.
    pub fn with_class(&self, class: LaneClass) -> Volume {
        Volume { services: Arc::clone(&self.services), class: Some(class) }
    }

    /// Description of the target, as of the first connection; with cores, of the first one, and the lanes of
    /// all.
    pub fn info(&self) -> &Info {
        &self.services.info
    }

    /// The namespace of the volume.
    pub fn namespace(&self) -> &NamespaceInfo {
        &self.services.namespace
    }

    /// Status of every connection. Empty while the association is down, or if an [engine](Volume::engine)
    /// owns the connections. The leader drives all connections of a core.
    pub async fn connections(&self) -> Vec<ConnectionStatus> {
        self.services.connections().await
    }

    /// The engine that has the volume; see [`Client::engine`](crate::Client::engine).
    pub async fn engine(&self) -> Option<EngineStatus> {
        self.services.engine().await
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
        self.services.close().await;
    }

    /// Returns a submitter for up to `depth` requests at a time, at least one, of one thread.
    pub fn submitter(&self, depth: usize) -> Submitter {
        Submitter::new(&self.services, self.class, depth)
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
        let class = self.class.unwrap_or_else(|| request.lane_class());
        let Completion { result, buffer, .. } = self.services.run(class, request);
        drop(buffer);
        result
    }

    fn send(&self, request: Request) -> AsyncReceiver<Completion> {
        let class = self.class.unwrap_or_else(|| request.lane_class());
        self.services.send(class, request)
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
