//! Remote volume: a namespace of another NVMe/TCP target, `nvme+tcp://HOST:PORT/NQN?nsid=N`.
//!
//! A core of the target drives the connection; before it does, and after it has ended, a thread. While the connection
//! is down, requests wait.
//!
//! Invariant: once the target has lost acknowledged writes, or may have, every request fails until the volume is
//! reopened, because the hosts of this volume would not notice.

mod journal;

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;
use std::time::Instant;

use isolane_host::{
    AssociationJournal, Client, Completion, ControllerInfo, NamespaceInfo, Options, RequestError, Uri, Wait,
};
use isolane_memory::{Buffer, Payload, Pool};
use isolane_reactor::{IoChoice, Mode, Waker};
use isolane_volume::spec::{Source, VolumeSpec};
use isolane_volume::{
    Completer, CorePart, Generation, Identity, OpenError, Outcome, Request, RestartLoss, Step, Volume,
    VolumeDescription, VolumeError, VolumeInfo, VolumeTree, tree,
};
use uuid::Uuid;

pub use self::journal::JournalFile;
use crate::EIO;
use crate::parts::Parts;

struct Remote {
    description: VolumeDescription,
    tree: VolumeTree,
    store: Uuid,
    messages: Sender<Message>,
    waker: Waker,
    /// Whether a core can wait for the connection, and none does yet.
    can_move: AtomicBool,
}

/// A message to the driver.
enum Message {
    Request {
        request: isolane_host::Request,
        completer: Completer,
        /// A deallocation that must be durable.
        flush_after: bool,
    },
    /// Moves the driver from the thread to a core.
    Move(Sender<Driver>),
}

/// Returns the address and the options of a remote volume, for a program that uses the host without this volume.
/// `None`: another kind of volume.
///
/// # Errors
/// The part that is invalid.
pub fn remote_address(spec: &VolumeSpec) -> Option<Result<(Uri, Options), OpenError>> {
    match &spec.source {
        Source::Nested { kind, options, .. } if kind == KIND => {
            Some(address(&Parts { name: spec.name(), options: options.clone(), ..Parts::default() }))
        }
        _ => None,
    }
}

fn address(parts: &Parts) -> Result<(Uri, Options), OpenError> {
    let uri = parts.name.parse().map_err(|error| {
        parts.error(format!("{error}"), "correct the address; options as reconnect=30s follow a comma")
    })?;
    let mut options = Options { depth: 128, ..Options::default() };
    if let Some(text) = parts.option("keep-alive") {
        options.keep_alive = parts.duration(text)?;
    }
    if let Some(text) = parts.option("reconnect") {
        options.reconnect.timeout = Some(parts.duration(text)?);
    }
    Ok((uri, options))
}

pub(crate) fn open(parts: Parts) -> Result<Arc<dyn Volume>, OpenError> {
    let (uri, options) = address(&parts)?;
    // Only epoll has a descriptor that a core can wait for.
    let options = Options { mode: Mode::Sleep, io: IoChoice::Epoll, ..options };
    let connected = match parts.journal.clone().filter(|_| uri.via.is_none()) {
        // An engine has a journal of its own.
        None => Client::connect(&uri, options),
        Some(journal) => {
            let stale = journal.stale(uri.nqn);
            let journal: Arc<dyn AssociationJournal> = journal;
            Client::connect_with_journal(&uri, options, &journal, &stale)
        }
    };
    let client = connected.map_err(|error| {
        OpenError::from_error(&parts.name, &error).with_os_error(Some(error.raw_os_error()))
    })?;
    let namespace = client.namespace().clone();
    let info = info(&parts, &namespace, &client.info().controller)?;
    let id = namespace.uuid.or(namespace.nguid.map(Uuid::from_bytes));
    let store = id.unwrap_or_else(|| {
        // The same at each address of the subsystem.
        let name = format!("{} {} {}", client.info().nqn, client.info().controller.serial, namespace.nsid);
        Identity::derived(name.as_bytes()).uuid
    });
    let identity = parts.identity(|| match id {
        Some(uuid) => Identity { uuid },
        None => Identity::derived(parts.name.as_bytes()),
    });
    let (waker, (messages, received)) = (client.waker(), mpsc::channel());
    let can_move = AtomicBool::new(client.wait_fd().is_some());
    let driver = Driver::new(client, received);
    driver.spawn().map_err(|error| parts.system_error(&error, "free some threads"))?;
    let generation = namespace.generation.map(generation);
    let tree = VolumeTree { kind: tree::kind::REMOTE, ..parts.tree() };
    let description = VolumeDescription { name: parts.name, info, identity, generation };
    Ok(Arc::new(Remote { description, tree, store, messages, waker, can_move }))
}

fn info(
    parts: &Parts,
    namespace: &NamespaceInfo,
    controller: &ControllerInfo,
) -> Result<VolumeInfo, OpenError> {
    if !isolane_volume::spec::BLOCK_SIZES.contains(&namespace.block_bytes) {
        let reason = format!("blocks of {} bytes", namespace.block_bytes);
        return Err(OpenError::new(&parts.name, reason, "use a volume with blocks of 512 or 4,096 bytes"));
    }
    if !namespace.read_only && !controller.has_write_zeroes {
        let reason = "the target cannot write zeroes";
        return Err(OpenError::new(&parts.name, reason, "use a target with Write Zeroes"));
    }
    Ok(VolumeInfo {
        block_size: namespace.block_bytes,
        blocks: namespace.blocks,
        read_only: namespace.read_only,
        volatile_cache: controller.has_volatile_cache,
        deallocate: controller.has_deallocate,
        zeroes_after_deallocate: false,
    })
}

fn generation(generation: isolane_host::Generation) -> Generation {
    let loses = match generation.loses {
        isolane_host::RestartLoss::Nothing => RestartLoss::Nothing,
        isolane_host::RestartLoss::Cache => RestartLoss::Cache,
        isolane_host::RestartLoss::Content => RestartLoss::Content,
    };
    Generation { id: generation.id, loses }
}

impl Volume for Remote {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn stores(&self) -> Vec<Uuid> {
        vec![self.store]
    }

    fn tree(&self) -> VolumeTree {
        self.tree.clone()
    }

    fn reads_into_pool(&self) -> bool {
        true
    }

    fn take_core_parts(&self) -> Vec<Box<dyn CorePart>> {
        if !self.can_move.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        let (sender, moved) = mpsc::channel();
        // Without a thread, this drops the sender.
        let _ = self.messages.send(Message::Move(sender));
        self.waker.wake();
        let driver = moved.recv().ok();
        driver.into_iter().map(|driver| Box::new(Part(Some(driver))) as Box<dyn CorePart>).collect()
    }

    fn start(&self, mut request: Request, pool: &mut Pool) -> Step {
        if let Err(error) = request.check(self.info()) {
            return request.fail(error, pool);
        }
        let mut buffer = None;
        match &mut request {
            Request::Read { blocks, .. } => {
                buffer = pool.buffer(*blocks as usize * self.info().block_size as usize);
                if buffer.is_none() {
                    return Step::Retry(request);
                }
            }
            Request::Write { data, .. } => make_exclusive(data, pool),
            Request::Deallocate { ranges, fua } => {
                ranges.retain(|range| range.blocks > 0);
                match ranges.is_empty() || !self.info().deallocate {
                    true if *fua => request = Request::Flush,
                    true => return Step::Done(Ok(Payload::default())),
                    false => {}
                }
            }
            _ => {}
        }
        let (completer, step) = Step::pending(&request);
        let flush_after = matches!(request, Request::Deallocate { fua: true, .. });
        let message = Message::Request { request: convert(request, buffer), completer, flush_after };
        // If the driver has ended, this drops the completer, which fails the request.
        let _ = self.messages.send(message);
        self.waker.wake();
        step
    }
}

impl Drop for Remote {
    /// The driver sees the closed channel.
    fn drop(&mut self) {
        self.messages = mpsc::channel().0;
        self.waker.wake();
    }
}

/// Copies data that shares pages with another request, because the client requires exclusive buffers. The copy does not
/// wait for pages of the pool, which can all belong to writes that wait for copies.
fn make_exclusive(data: &mut Buffer, pool: &mut Pool) {
    if data.is_exclusive() {
        return;
    }
    let len = data.len();
    let (mut copy, mut at) = (pool.buffer(len).unwrap_or_else(|| Buffer::contiguous(len)), 0);
    data.for_each_slice(0, len, |slice| {
        copy.copy_in(at, slice);
        at += slice.len();
    });
    pool.recycle_buffer(std::mem::replace(data, copy));
}

fn convert(request: Request, buffer: Option<Buffer>) -> isolane_host::Request {
    use isolane_host::{BlockRange, Request as HostRequest};
    match request {
        Request::Read { lba, .. } => HostRequest::Read { lba, buffer: buffer.unwrap_or_default() },
        Request::Write { lba, data, fua, .. } => HostRequest::Write { lba, buffer: data, fua },
        Request::Flush => HostRequest::Flush,
        Request::WriteZeroes { lba, blocks, fua, deallocate } => {
            HostRequest::WriteZeroes { range: BlockRange { lba, blocks }, fua, deallocate }
        }
        Request::Deallocate { ranges, .. } => {
            let ranges = ranges.iter().map(|range| BlockRange { lba: range.lba, blocks: range.blocks });
            HostRequest::Deallocate { ranges: ranges.collect() }
        }
        Request::Continue(_) => unreachable!("a remote volume never continues a request"),
    }
}

/// The connection of a remote volume and its requests.
struct Driver {
    client: Client,
    generation: Option<isolane_host::Generation>,
    completions: Vec<Completion>,
    received: Receiver<Message>,
    /// The core to move to, and whether the volume is open.
    target: Option<Sender<Driver>>,
    is_open: bool,
    /// Requests by tag.
    in_flight: HashMap<u64, InFlight>,
    next_tag: u64,
    lost: bool,
}

struct InFlight {
    completer: Completer,
    is_read: bool,
    flush_after: bool,
}

/// A driver in a core.
struct Part(Option<Driver>);

impl Part {
    fn driver(&mut self) -> &mut Driver {
        self.0.as_mut().unwrap_or_else(|| unreachable!("only a dropped part has no driver"))
    }
}

impl CorePart for Part {
    fn wait_fd(&self) -> BorrowedFd<'_> {
        let descriptor = self.0.as_ref().and_then(|driver| driver.client.wait_fd());
        descriptor.unwrap_or_else(|| unreachable!("only drivers with a descriptor move"))
    }

    fn turn(&mut self) -> bool {
        self.driver().turn(Wait::None) > 0
    }

    fn prepare_wait(&mut self) -> Option<Instant> {
        self.driver().client.prepare_wait()
    }

    fn finish_wait(&mut self) {
        self.driver().client.finish_wait();
    }
}

impl Drop for Part {
    /// Other cores may still send requests, and closing the connection takes time.
    fn drop(&mut self) {
        let Some(mut driver) = self.0.take() else { return };
        driver.client.finish_wait();
        if let Err(error) = driver.spawn() {
            log::error!("no thread for the end of a remote volume: {error}");
        }
    }
}

impl Driver {
    fn new(client: Client, received: Receiver<Message>) -> Driver {
        Driver {
            generation: client.namespace().generation,
            client,
            completions: Vec::new(),
            received,
            target: None,
            is_open: true,
            in_flight: HashMap::new(),
            next_tag: 0,
            lost: false,
        }
    }

    /// Runs in a thread until the volume is closed, or a core takes over.
    fn spawn(self) -> io::Result<()> {
        thread::Builder::new().name("isolane-remote".to_owned()).spawn(move || self.run()).map(drop)
    }

    fn run(mut self) {
        while self.is_open || !self.in_flight.is_empty() {
            self.turn(Wait::Forever);
            if let Some(core) = self.target.take() {
                match core.send(self) {
                    Ok(()) => return,
                    Err(mpsc::SendError(driver)) => self = driver,
                }
            }
        }
        self.client.close();
    }

    /// Submits new requests and completes finished ones. Returns the number of the latter.
    fn turn(&mut self, wait: Wait) -> usize {
        self.receive_messages();
        let is_over = self.target.is_some() || (!self.is_open && self.in_flight.is_empty());
        let wait = if is_over { Wait::None } else { wait };
        let mut completions = std::mem::take(&mut self.completions);
        let finished = self.client.turn(&mut completions, wait);
        if !self.lost && self.client.namespace().generation != self.generation {
            log::error!("{}: the target lost writes; restart this one", self.client.info().address);
            self.lost = true;
        }
        completions.drain(..).for_each(|completion| self.complete(completion));
        self.completions = completions;
        // Requests can have waited for completions.
        self.receive_messages();
        finished
    }

    fn receive_messages(&mut self) {
        while self.in_flight.len() < MAX_REQUESTS && self.is_open {
            match self.received.try_recv() {
                Ok(Message::Request { request, completer, flush_after }) => {
                    let is_read = request.is_read();
                    self.submit(request, InFlight { completer, is_read, flush_after });
                }
                Ok(Message::Move(core)) => self.target = Some(core),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.is_open = false,
            }
        }
    }

    fn submit(&mut self, request: isolane_host::Request, in_flight: InFlight) {
        if self.lost {
            return in_flight.completer.complete(Err(lost(in_flight.is_read)));
        }
        self.next_tag += 1;
        self.in_flight.insert(self.next_tag, in_flight);
        self.client.submit(0, request, self.next_tag);
    }

    fn complete(&mut self, Completion { tag, result, buffer }: Completion) {
        let Some(InFlight { completer, is_read, flush_after }) = self.in_flight.remove(&tag) else { return };
        let data = if is_read { buffer.map(Buffer::into_payload) } else { None };
        if result.is_ok() && flush_after {
            let in_flight = InFlight { completer, is_read, flush_after: false };
            return self.submit(isolane_host::Request::Flush, in_flight);
        }
        self.lost |= matches!(result, Err(RequestError::WritesLost { .. }));
        completer.complete(self.outcome(result, data, is_read));
    }

    fn outcome(&self, result: Result<(), RequestError>, data: Option<Payload>, is_read: bool) -> Outcome {
        match result {
            _ if self.lost => Err(lost(is_read)),
            Ok(()) => Ok(data.unwrap_or_default()),
            Err(error) => {
                log::limited!(Error, "{}: {error}", self.client.info().address);
                Err(if is_read {
                    VolumeError::ReadFailed { raw_os_error: EIO }
                } else {
                    VolumeError::WriteFailed { raw_os_error: EIO }
                })
            }
        }
    }
}

fn lost(is_read: bool) -> VolumeError {
    if is_read {
        VolumeError::ReadFailed { raw_os_error: EIO }
    } else {
        VolumeError::SyncFailed { raw_os_error: EIO }
    }
}

/// Name of the kind.
pub(crate) const KIND: &str = "nvme+tcp";
/// Maximum number of requests at the client; more wait in the channel.
const MAX_REQUESTS: usize = 1024;

#[cfg(test)]
mod tests;
