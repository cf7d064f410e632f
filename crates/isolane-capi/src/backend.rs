//! Access to a volume: a host of another target, or a thread that drives a volume of this machine.
//!
//! | file | purpose |
//! |---|---|
//! | `volume.rs`, `queue.rs`, `memory.rs` | exported functions |
//! | `backend.rs` | opening, checks, and access of one thread |
//!
//! Invariant: no call returns, not even by a panic, while a request of it still refers to the caller's memory.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use isolane_host::{BlockRange, BlockingVolume, Completion, Options, Request, Submitter, Uri};
use isolane_memory::Buffer;
use isolane_rbd::Rbd;
use isolane_reactor::{ReactorConfig, ReactorError};
use isolane_shm::process_id;
use isolane_volume::spec::VolumeSpec;
use isolane_volume::{OpenError, ThreadQueue, VolumeThread};
use isolane_volumes::{Kind, Kinds, remote_address};

use crate::error::Failure;

/// An open volume, until its last queue is closed.
pub(crate) struct OpenVolume {
    pub name: CString,
    pub bytes: u64,
    pub block_bytes: u32,
    pub is_read_only: bool,
    /// The process that opened it.
    process: u64,
    can_write_zeroes: bool,
    can_discard: bool,
    /// Ports of blocking calls that have ended. Dropped before the volume.
    idle: ArrayQueue<Port>,
    backend: Backend,
}

enum Backend {
    /// `None` once it is closed.
    Remote(Option<BlockingVolume>),
    Local(Option<Arc<VolumeThread>>, Arc<Rbd>),
}

impl OpenVolume {
    /// Opens a volume from its text.
    pub fn open(text: &CStr, is_read_only: bool) -> Result<OpenVolume, Failure> {
        let text = text.to_str().map_err(|_| {
            Failure::WithErrno(libc::EINVAL, format!("{text:?} is not UTF-8: use another name of the volume"))
        })?;
        let rbd = Arc::new(Rbd::new(IMAGES_PER_CONNECTION));
        let (mut kinds, opener) = (Kinds::default(), Arc::clone(&rbd));
        kinds.add(Kind::leaf("rbd", isolane_rbd::OPTIONS, move |spec| opener.open(spec)));
        let mut spec =
            kinds.parse(text).map_err(|error| Failure::WithErrno(libc::EINVAL, error.to_string()))?;
        if spec.nsid.is_some() {
            let message = format!("{text}: the volume of a program has no namespace ID; remove nsid");
            return Err(Failure::WithErrno(libc::EINVAL, message));
        }
        spec.read_only |= is_read_only;
        match remote_address(&spec) {
            Some(address) => {
                let (uri, options) = address.map_err(invalid)?;
                OpenVolume::connect(&spec, &uri, options)
            }
            None => OpenVolume::start(&kinds, &spec, rbd),
        }
    }

    fn connect(spec: &VolumeSpec, uri: &Uri, options: Options) -> Result<OpenVolume, Failure> {
        let volume = BlockingVolume::connect(uri, options).map_err(|error| {
            Failure::WithErrno(error.raw_os_error(), format!("cannot open {uri}: {error}"))
        })?;
        let (namespace, controller) = (volume.namespace(), &volume.info().controller);
        Ok(OpenVolume {
            name: name(spec),
            bytes: volume.size(),
            block_bytes: volume.block_size(),
            is_read_only: spec.read_only || namespace.read_only,
            process: process_id(),
            can_write_zeroes: controller.has_write_zeroes,
            can_discard: controller.has_deallocate,
            idle: ArrayQueue::new(MAX_IDLE),
            backend: Backend::Remote(Some(volume)),
        })
    }

    fn start(kinds: &Kinds, spec: &VolumeSpec, rbd: Arc<Rbd>) -> Result<OpenVolume, Failure> {
        let volume = kinds.open(spec)?;
        let thread = VolumeThread::start(volume, ReactorConfig::default()).map_err(|error| {
            let number = match &error {
                ReactorError::Setup { error, .. } => error.raw_os_error(),
                _ => None,
            };
            Failure::WithErrno(number.unwrap_or(libc::EIO), format!("cannot open {}: {error}", spec.name()))
        })?;
        let info = thread.volume().info();
        Ok(OpenVolume {
            name: name(spec),
            bytes: info.bytes(),
            block_bytes: info.block_size,
            is_read_only: info.read_only,
            process: process_id(),
            can_write_zeroes: true,
            can_discard: true,
            idle: ArrayQueue::new(MAX_IDLE),
            backend: Backend::Local(Some(thread), rbd),
        })
    }

    /// Checks that this process has opened the volume.
    #[inline]
    pub fn check_process(&self) -> Result<(), Failure> {
        if self.is_of_this_process() {
            return Ok(());
        }
        let message = "the volume belongs to the process that opened it: open it again in this one";
        Err(Failure::WithErrno(libc::ECONNABORTED, message.to_owned()))
    }

    pub fn is_of_this_process(&self) -> bool {
        self.process == process_id()
    }

    /// Returns access for one thread, with up to `depth` requests.
    pub fn port(&self, depth: usize) -> Result<Port, Failure> {
        match &self.backend {
            Backend::Remote(Some(volume)) => {
                let submitter = volume.submitter(depth);
                Ok(Port::Remote { submitter, taken: Vec::with_capacity(depth), completed: VecDeque::new() })
            }
            Backend::Local(Some(thread), _) => Ok(Port::Local(thread.queue())),
            Backend::Remote(None) | Backend::Local(None, _) => {
                Err(Failure::bug("a closed volume has a user"))
            }
        }
    }

    /// Returns the request for a range, in bytes, without its data.
    pub fn check(&self, operation: Operation, offset: u64, length: u64) -> Result<BlockRange, Failure> {
        let block = u64::from(self.block_bytes);
        let fail = |number, message: String| Err(Failure::WithErrno(number, message));
        for (value, what) in [(offset, "offset"), (length, "length")] {
            if !value.is_multiple_of(block) {
                let message =
                    format!("{what} {value} is not a multiple of the block size {block}: pass whole blocks");
                return fail(libc::EINVAL, message);
            }
        }
        if offset.checked_add(length).is_none_or(|end| end > self.bytes) {
            let message = format!(
                "{length} bytes at offset {offset} end beyond the volume of {} bytes: see isolane_volume_bytes()",
                self.bytes
            );
            return fail(libc::EINVAL, message);
        }
        if self.is_read_only && operation.is_change() {
            return fail(
                libc::EROFS,
                "the volume is read-only: open it without ro and ISOLANE_READ_ONLY".to_owned(),
            );
        }
        if operation == Operation::WriteZeroes && !self.can_write_zeroes {
            let message = "the target has no Write Zeroes: write zeroes with isolane_volume_pwrite()";
            return fail(libc::EOPNOTSUPP, message.to_owned());
        }
        Ok(BlockRange { lba: offset / block, blocks: length / block })
    }

    /// Returns the request of an operation on a range that was checked, or `None` if there is nothing to do. `buffer` is
    /// empty unless it is a read or a write.
    pub fn request(
        &self,
        operation: Operation,
        range: BlockRange,
        buffer: Buffer,
        fua: bool,
    ) -> Option<Request> {
        Some(match operation {
            Operation::Read => Request::Read { lba: range.lba, buffer },
            Operation::Write => Request::Write { lba: range.lba, buffer, fua },
            Operation::WriteZeroes if range.blocks > 0 => {
                Request::WriteZeroes { range, fua, deallocate: true }
            }
            Operation::Discard if range.blocks > 0 && self.can_discard => {
                let starts = (0..range.blocks).step_by(MAX_DISCARD_BLOCKS as usize);
                let part = |start| BlockRange {
                    lba: range.lba + start,
                    blocks: MAX_DISCARD_BLOCKS.min(range.blocks - start),
                };
                Request::Deallocate { ranges: starts.map(part).collect() }
            }
            Operation::Discard | Operation::WriteZeroes => return None,
            Operation::Flush => Request::Flush,
        })
    }

    /// Executes one request, and waits for its completion.
    pub fn run(&self, request: Request) -> Result<(), Failure> {
        let mut port = self.idle.pop().map_or_else(|| self.port(1), Ok)?;
        let guard = Abort;
        port.submit(0, request);
        let result = loop {
            port.wait(None);
            if let Some((_, result)) = port.take() {
                break result;
            }
        };
        std::mem::forget(guard);
        // Dropped if enough are kept.
        let _ = self.idle.push(port);
        result
    }
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        while self.idle.pop().is_some() {}
        match &mut self.backend {
            Backend::Remote(volume) => volume.take().into_iter().for_each(BlockingVolume::close),
            Backend::Local(thread, rbd) => {
                drop(thread.take());
                rbd.wait_for_closed(CLOSE_TIMEOUT);
            }
        }
    }
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
    Flush,
    WriteZeroes,
    Discard,
}

impl Operation {
    pub fn is_change(self) -> bool {
        !matches!(self, Operation::Read | Operation::Flush)
    }

    pub fn has_data(self) -> bool {
        matches!(self, Operation::Read | Operation::Write)
    }
}

/// Access of one thread at a time to a volume.
pub(crate) enum Port {
    Remote { submitter: Submitter, taken: Vec<Completion>, completed: VecDeque<Completion> },
    Local(ThreadQueue),
}

impl Port {
    /// Queues a request; a wait, or [`Port::arm`], sends it. At most the depth of the port may be outstanding.
    pub fn submit(&mut self, tag: u64, request: Request) {
        match self {
            Port::Remote { submitter, .. } => {
                let submitted = submitter.submit(request, tag);
                debug_assert!(submitted.is_ok(), "fewer than the depth were outstanding");
            }
            Port::Local(queue) => {
                let (request, destination) = local(request, queue);
                queue.submit(tag, request, destination);
            }
        }
    }

    /// Sends the queued requests.
    pub fn send(&mut self) {
        match self {
            Port::Remote { submitter, .. } => submitter.send(),
            Port::Local(queue) => queue.send(),
        }
    }

    /// Sends the queued requests, and waits for a completion, or until the deadline. Returns immediately if there is
    /// no request.
    pub fn wait(&mut self, deadline: Option<Instant>) {
        match self {
            Port::Remote { submitter, taken, completed } => {
                if completed.is_empty() {
                    match deadline {
                        Some(deadline) => submitter.wait_until(taken, deadline),
                        None => submitter.wait(taken),
                    };
                    completed.extend(taken.drain(..));
                }
            }
            Port::Local(queue) => queue.wait(deadline),
        }
    }

    /// Returns whether [`Port::take`] returns a result now.
    pub fn has_completions(&self) -> bool {
        match self {
            Port::Remote { completed, .. } => !completed.is_empty(),
            Port::Local(queue) => queue.has_completions(),
        }
    }

    /// Returns the result of a completed request.
    pub fn take(&mut self) -> Option<(u64, Result<(), Failure>)> {
        match self {
            Port::Remote { completed, .. } => {
                let Completion { tag, result, .. } = completed.pop_front()?;
                Some((tag, result.map_err(Failure::from)))
            }
            Port::Local(queue) => {
                let (tag, outcome) = queue.poll()?;
                Some((tag, outcome.map(drop).map_err(Failure::from)))
            }
        }
    }

    /// Sends the queued requests, and requests a notification at [`Port::fd`]. Returns `false` if there is a completion
    /// already.
    pub fn arm(&mut self) -> io::Result<bool> {
        match self {
            Port::Remote { submitter, completed, .. } if !completed.is_empty() => {
                submitter.send();
                Ok(false)
            }
            Port::Remote { submitter, .. } => submitter.arm(),
            Port::Local(queue) => queue.arm(),
        }
    }

    pub fn disarm(&mut self) {
        match self {
            Port::Remote { submitter, .. } => submitter.disarm(),
            Port::Local(queue) => queue.disarm(),
        }
    }

    pub fn fd(&self) -> io::Result<RawFd> {
        match self {
            Port::Remote { submitter, .. } => Ok(submitter.wait_fd()?.as_raw_fd()),
            Port::Local(queue) => Ok(queue.wait_fd()?.as_raw_fd()),
        }
    }
}

/// Converts a request for a volume of this machine, and returns the destination of a read.
fn local(request: Request, queue: &ThreadQueue) -> (isolane_volume::Request, Option<Buffer>) {
    use isolane_volume::Request as Local;
    let block_bytes = queue.volume().info().block_size as usize;
    let blocks = |buffer: &Buffer| (buffer.len() / block_bytes) as u64;
    let request = match request {
        Request::Read { lba, buffer } => {
            return (Local::Read { lba, blocks: blocks(&buffer) }, Some(buffer));
        }
        Request::Write { lba, buffer, fua } => {
            // A member can keep its part of a request that has completed, as one that a mirror has removed.
            let data = if queue.is_leaf() { buffer } else { copy(&buffer) };
            Local::Write { lba, blocks: blocks(&data), data, fua }
        }
        Request::Flush => Local::Flush,
        Request::WriteZeroes { range, fua, deallocate } => {
            Local::WriteZeroes { lba: range.lba, blocks: range.blocks, fua, deallocate }
        }
        Request::Deallocate { ranges } => {
            let ranges = ranges.iter();
            let ranges =
                ranges.map(|range| isolane_volume::BlockRange { lba: range.lba, blocks: range.blocks });
            Local::Deallocate { ranges: ranges.collect(), fua: false }
        }
    };
    (request, None)
}

fn copy(buffer: &Buffer) -> Buffer {
    let (mut copy, mut at) = (Buffer::contiguous(buffer.len()), 0);
    for slice in buffer.slices(0, buffer.len()) {
        copy.copy_in(at, slice);
        at += slice.len();
    }
    copy
}

/// Aborts the process when dropped: unwinding would free memory that a request may still use.
struct Abort;

impl Drop for Abort {
    fn drop(&mut self) {
        std::process::abort();
    }
}

fn name(spec: &VolumeSpec) -> CString {
    CString::new(spec.name()).unwrap_or_default()
}

fn invalid(error: OpenError) -> Failure {
    Failure::WithErrno(libc::EINVAL, error.to_string())
}

/// Maximum data of one request, in bytes.
pub(crate) const MAX_REQUEST_BYTES: usize = 32 << 20;
/// Ports kept for later blocking calls.
const MAX_IDLE: usize = 64;
/// Images of one connection to a cluster.
const IMAGES_PER_CONNECTION: usize = 8;
/// Time for a cluster to close images.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of blocks of one range of a discard.
const MAX_DISCARD_BLOCKS: u64 = u32::MAX as u64 & !0xfff;
