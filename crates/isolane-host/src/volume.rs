//! A volume for asynchronous callers: any number of clones, any executor.
//!
//! A thread of its own drives the [`Client`](crate::Client) behind it, so keep alive and reconnecting go on
//! whatever the callers do. A buffer is handed in with the call and comes back with the result. Invariant: a
//! dropped future cancels nothing; its buffer stays with the lane until the response has come or the
//! connection is dead.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use isolane_memory::Buffer;

use crate::attached::EngineStatus;
use crate::classes::Class;
use crate::client::ConnectionStatus;
use crate::error::{ConnectError, RequestError};
use crate::info::{Info, NamespaceInfo};
use crate::oneshot::{Receiver, oneshot};
use crate::options::Options;
use crate::request::{BlockRange, Completion, Request};
use crate::service::Handle;
use crate::submitter::Submitter;
use crate::uri::Uri;

/// A volume at the other end of a connection.
#[derive(Clone)]
pub struct Volume {
    handle: Arc<Handle>,
    /// What requests ask for; none: what is for them.
    class: Option<Class>,
}

impl Volume {
    /// Connects.
    ///
    /// With [`Options::cores`], or cores in the URI, the volume has an association on each of them, whose
    /// lanes are driven there alone (H3): the lanes of each class are dealt out from the first core upward. A
    /// request goes to the core that its caller runs on, if there is a lane of its class, else to one that
    /// has some; callers on other cores are spread over all. So pin threads that submit to those cores. What
    /// completed through one association is seen through all; a flush goes through each of them; writes wait
    /// for the [`fence`](crate::fence)s of all. An association that is lost is no concern of the others:
    /// requests that are for it wait or fail as they do with one association alone, and so does a flush.
    ///
    /// # Errors
    /// Why there is no connection, and what to do; of several cores, for which.
    pub async fn connect(uri: &Uri, options: Options) -> Result<Volume, ConnectError> {
        Ok(Volume { handle: Arc::new(Handle::open(uri, options).await?), class: None })
    }

    /// The same volume, whose requests all ask for a class of lanes: [`Class::Poll`] for urgent ones,
    /// whose callers never sleep while they turn the client themselves. A volume that asks for
    /// none reads over the read class and does all else over the default class.
    pub fn of_class(&self, class: Class) -> Volume {
        Volume { handle: Arc::clone(&self.handle), class: Some(class) }
    }

    /// What the target told when the connection was made; with cores that of the first, and the lanes of all.
    pub fn info(&self) -> &Info {
        &self.handle.info
    }

    /// The namespace this is.
    pub fn namespace(&self) -> &NamespaceInfo {
        &self.handle.namespace
    }

    /// Where each of its connections is; none while the association is down, or if they
    /// are an [engine's](Volume::engine). Whoever drives the volume drives
    /// all of them, with cores all that are on one.
    pub async fn connections(&self) -> Vec<ConnectionStatus> {
        self.handle.connections().await
    }

    /// At which engine it is; see [`Client::engine`](crate::Client::engine).
    pub async fn engine(&self) -> Option<EngineStatus> {
        self.handle.engine().await
    }

    /// Returns the size of the volume in bytes.
    pub fn size(&self) -> u64 {
        self.namespace().len_bytes()
    }

    /// Returns the size of a logical block in bytes; offsets and lengths are multiples of it.
    pub fn block_size(&self) -> u32 {
        self.namespace().block_bytes
    }

    /// Bytes in a logical block: offsets and lengths are multiples of it.
    pub fn block_bytes(&self) -> u32 {
        self.namespace().block_bytes
    }

    /// Size of the volume in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.namespace().len_bytes()
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

    /// Makes every write that completed before durable.
    pub fn flush(&self) -> Action {
        self.action(Ok(Request::Flush))
    }

    /// Zeroes a range without sending zeroes; the target may release the space.
    pub fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> Action {
        let range = self.range(offset_bytes, len_bytes);
        self.action(range.map(|range| Request::WriteZeroes { range, fua: false, deallocate: true }))
    }

    /// Tells that a range's content is no longer needed.
    pub fn deallocate(&self, offset_bytes: u64, len_bytes: u64) -> Action {
        self.action(self.deallocation(offset_bytes, len_bytes))
    }

    /// Ends the connection in order: what is in flight completes, the controller is shut down. Without it the
    /// end comes when the last clone is dropped, in the background.
    pub async fn close(self) {
        self.handle.close().await;
    }

    /// A place for one thread that keeps up to `depth` requests, one at least, on their way.
    pub fn submitter(&self, depth: usize) -> Submitter {
        Submitter::new(&self.handle, self.class, depth)
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
        let block_bytes = self.block_bytes();
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

    /// Does one request and waits for its end.
    pub(crate) fn run(&self, request: Request) -> Completion {
        self.handle.run(self.class.unwrap_or_else(|| Class::of(&request)), request)
    }

    fn send(&self, request: Request) -> Receiver<Completion> {
        let class = self.class.unwrap_or_else(|| Class::of(&request));
        self.handle.send(class, request)
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

/// A read or a write on its way; its output is the buffer.
#[must_use = "the result and the buffer come out of it"]
pub struct Transfer(Receiver<Completion>);

impl Transfer {
    fn failed(error: RequestError, buffer: Buffer) -> Transfer {
        Transfer(ready(Completion { tag: 0, result: Err(error), buffer: Some(buffer) }))
    }
}

impl Future for Transfer {
    type Output = Result<Buffer, Failed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|completion| match completion {
            Some(Completion { result: Ok(()), buffer: Some(buffer), .. }) => Ok(buffer),
            Some(Completion { result, buffer, .. }) => {
                Err(Failed { error: result.err().unwrap_or(RequestError::Closed), buffer })
            }
            None => Err(Failed { error: RequestError::Closed, buffer: None }),
        })
    }
}

/// A flush, zeroing or deallocation on its way.
#[must_use = "the result comes out of it"]
pub struct Action(Receiver<Completion>);

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
pub struct Failed {
    /// Why.
    #[source]
    pub error: RequestError,
    /// The buffer, with undefined content after a failed read; none only if the lane's thread itself ended.
    pub buffer: Option<Buffer>,
}

fn ready(completion: Completion) -> Receiver<Completion> {
    let (sender, receiver) = oneshot();
    sender.send(completion);
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Misdeed, Script, Target};
    use crate::oneshot::block_on;
    use crate::options::Reconnect;

    fn pair() -> (Target, Volume) {
        let target = Target::start(Script::default());
        let options = Options { lanes: 2, depth: 16, ..Options::default() };
        let volume = block_on(Volume::connect(&target.uri(), options)).unwrap();
        (target, volume)
    }

    #[test]
    fn buffers_go_out_and_come_back_with_the_result() {
        let (target, volume) = pair();
        assert_eq!((volume.block_bytes(), volume.len_bytes()), (512, 4 << 20));
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
        block_on(volume.of_class(Class::Poll).read(0, Buffer::contiguous(512))).unwrap();
        let mut queues: Vec<u16> = target.shared.queues.lock().iter().map(|&(qid, _)| qid).collect();
        assert_eq!(queues.pop(), Some(4), "the poll class");
        assert_eq!(queues.pop(), Some(1), "the write");
        queues.sort_unstable();
        assert_eq!(queues, [2, 2, 3, 3], "reads take turns");
    }

    #[test]
    fn a_dropped_future_cancels_nothing() {
        let (target, volume) = pair();
        let mut buffer = Buffer::contiguous(512);
        buffer.as_mut_slice().unwrap().fill(9);
        drop(volume.write(0, buffer));
        block_on(volume.close());
        assert_eq!(target.shared.landed.lock().clone(), [(0, 9)]);
    }

    #[test]
    fn the_last_clone_ends_the_connection_in_order() {
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
    fn a_failure_brings_the_buffer_back() {
        let (_target, volume) = pair();
        let failed = block_on(volume.read(100, Buffer::contiguous(512))).unwrap_err();
        assert!(matches!(failed.error, RequestError::Unaligned { bytes: 100, .. }));
        assert_eq!(failed.buffer.unwrap().len(), 512);
        let failed = block_on(volume.read(4 << 20, Buffer::contiguous(512))).unwrap_err();
        assert!(matches!(failed.error, RequestError::OutOfRange { .. }));
        assert!(matches!(block_on(volume.write_zeroes(0, 5)), Err(RequestError::Unaligned { .. })));
    }

    #[test]
    fn a_lost_connection_that_is_not_made_anew_fails_what_is_on_its_way_and_what_comes() {
        let target = Target::start(Script::default());
        let options = Options { reconnect: Reconnect::never(), ..Options::default() };
        let volume = block_on(Volume::connect(&target.uri(), options)).unwrap();
        target.set_misdeed(0, Misdeed::Close);
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
