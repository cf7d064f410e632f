//! The control connection of one monitor (vhost-user), which has its own thread.
//!
//! The crate `vhost` decodes the messages, and waits for the bytes of each. This thread keeps the state that they set,
//! checks it when a queue starts, and passes complete queues to the core, whose reply it waits for.
//!
//! Invariants:
//! * The core has every started queue until it is stopped, or the connection ends.
//! * At most one message of a connection waits for the core, which bounds the descriptors in messages.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use isolane_reactor::mailbox::Sender;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg, VhostUserSingleMemoryRegion,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
    VhostUserVirtioFeatures,
};

use crate::descriptors::{MAX_MEMORIES, MAX_REGIONS, Memories};
use crate::device::{Device, MAX_QUEUE_SIZE, MAX_QUEUES, feature};
use crate::inflight::InflightFile;
use crate::memory::{GuestMemory, RegionSpec};
use crate::ring::{Ring, RingConfig, RingError};

/// A message of a control thread to the core.
pub(crate) struct Message {
    /// The connection.
    pub session: u64,
    pub kind: MessageKind,
}

pub(crate) enum MessageKind {
    /// Starts a queue. `kick` is readable after the driver has made requests available.
    Start { ring: Box<StartedRing>, kick: OwnedFd, reply: SyncSender<io::Result<()>> },
    /// Stops a queue, once its requests have completed. The reply is its next index.
    Stop { index: u32, reply: SyncSender<u16> },
    /// Whether a started queue is served.
    Enable { index: u32, is_enabled: bool, reply: SyncSender<()> },
    /// Replaces the descriptor by which a started queue notifies its driver.
    Call { index: u32, call: Option<OwnedFd>, reply: SyncSender<()> },
    /// Replaces the memory of the started queues.
    Memory { memory: Arc<GuestMemory>, reply: SyncSender<std::result::Result<(), RingError>> },
    /// The connection has ended. The sender is dropped once the core has no reference to its memory.
    Close(SyncSender<()>),
}

/// A queue with its descriptors.
pub(crate) struct StartedRing {
    pub index: u32,
    pub ring: Ring,
    /// Notifies the driver of results.
    pub call: Option<OwnedFd>,
    /// Notifies the monitor of a fault.
    pub error: Option<OwnedFd>,
    pub is_enabled: bool,
    /// Each write is durable before it completes.
    pub is_write_through: bool,
}

/// A connection and its state.
pub(crate) struct Control {
    session: u64,
    core: Sender<Message>,
    device: Arc<Device>,
    memories: Memories,
    features: u64,
    memory: Option<Arc<GuestMemory>>,
    inflight: Option<InflightFile>,
    queues: Vec<Queue>,
}

/// State of a queue that its messages set.
#[derive(Default)]
struct Queue {
    size: u16,
    /// Descriptors, available ring, used ring.
    addresses: Option<[u64; 3]>,
    base: u16,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    is_enabled: bool,
    is_started: bool,
}

impl Control {
    pub fn new(session: u64, core: Sender<Message>, device: Arc<Device>, memories: Memories) -> Control {
        let mut queues = Vec::new();
        queues.resize_with(device.max_queues.into(), Queue::default);
        Control { session, core, device, memories, features: 0, memory: None, inflight: None, queues }
    }

    /// Handles messages until the connection ends.
    pub fn run(self, socket: UnixStream, peer: &str) {
        let mut handler = BackendReqHandler::from_stream(socket, Arc::new(Mutex::new(self)));
        let end = loop {
            if let Err(error) = handler.handle_request() {
                break error;
            }
        };
        match end {
            Error::Disconnected | Error::SocketBroken(_) => log::debug!("{peer}: disconnected"),
            Error::ReqHandlerError(error) => log::limited!(Warn, "{peer}: {error}; closed"),
            error => log::limited!(Warn, "{peer}: {error}; closed"),
        }
    }

    fn send(&self, kind: MessageKind) -> Result<()> {
        let message = Message { session: self.session, kind };
        self.core.send(message).map_err(|_| refuse("the server is shutting down"))
    }

    /// Waits for a reply of the core.
    fn wait<T>(receiver: &Receiver<T>) -> Result<T> {
        receiver.recv().map_err(|_| refuse("the server has closed the connection"))
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue> {
        let queue = self.queues.get_mut(index as usize);
        let max_queues = self.device.max_queues;
        queue.ok_or_else(|| refuse(format!("queue {index}; the device has {max_queues}")))
    }

    fn stopped_queue(&mut self, index: u32) -> Result<&mut Queue> {
        let queue = self.queue(index)?;
        if queue.is_started {
            return Err(refuse(format!("queue {index} was changed while it is started; stop it first")));
        }
        Ok(queue)
    }

    fn start(&mut self, index: u32, kick: OwnedFd) -> Result<()> {
        let fault = |reason: &dyn Display| refuse(format!("queue {index}: {reason}"));
        let memory = self.memory.clone().ok_or_else(|| fault(&"started without guest memory"))?;
        let needs_enable = self.features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0;
        let event_index = self.features & feature::EVENT_INDEX != 0;
        let is_write_through = self.features & feature::FLUSH == 0;
        let (device, inflight) = (Arc::clone(&self.device), self.inflight.clone());
        let queue = self.stopped_queue(index)?;
        let [descriptors, available, used] =
            queue.addresses.ok_or_else(|| fault(&"started without addresses"))?;
        let (size, base) = (queue.size, queue.base);
        let config = RingConfig { index, size, descriptors, available, used, base, event_index };
        let ring = Ring::new(config, device, memory, inflight.as_ref()).map_err(|error| fault(&error))?;
        let is_enabled = queue.is_enabled || !needs_enable;
        let (call, error) = (queue.call.take(), queue.error.take());
        let ring = Box::new(StartedRing { index, ring, call, error, is_enabled, is_write_through });
        let (reply, started) = sync_channel(1);
        self.send(MessageKind::Start { ring, kick, reply })?;
        Control::wait(&started)?.map_err(|error| fault(&error))?;
        self.queue(index)?.is_started = true;
        Ok(())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let (reply, closed) = sync_channel(1);
        // Unmapping memory takes long, so this thread drops it last.
        if self.send(MessageKind::Close(reply)).is_ok() {
            let _ = closed.recv();
        }
    }
}

impl VhostUserBackendReqHandlerMut for Control {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        Err(not_offered())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.device.features())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.device.features();
        if unknown != 0 {
            return Err(refuse(format!("features {unknown:#x} were not offered")));
        }
        self.features = features;
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let spec = |region: &VhostUserMemoryRegion| RegionSpec {
            guest: region.guest_phys_addr,
            len: region.memory_size,
            user: region.user_addr,
            offset: region.mmap_offset,
        };
        if regions.len() > MAX_REGIONS {
            return Err(refuse(format!("{} regions of memory; use at most {MAX_REGIONS}", regions.len())));
        }
        if self.memories.count() >= MAX_MEMORIES {
            return Err(refuse(format!(
                "requests in flight use {MAX_MEMORIES} earlier memories; replace it later"
            )));
        }
        let regions = regions.iter().map(spec).zip(files.into_iter().map(OwnedFd::from)).collect();
        let memory = Arc::new(GuestMemory::map(regions).map_err(refuse)?);
        self.memories.add(&memory);
        let _replaced_last = self.memory.replace(Arc::clone(&memory));
        if self.queues.iter().any(|queue| queue.is_started) {
            let (reply, replaced) = sync_channel(1);
            self.send(MessageKind::Memory { memory, reply })?;
            Control::wait(&replaced)?.map_err(refuse)?;
        }
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        let queue = self.stopped_queue(index)?;
        let checked =
            u16::try_from(size).ok().filter(|size| *size <= MAX_QUEUE_SIZE && size.is_power_of_two());
        queue.size = checked.ok_or_else(|| {
            refuse(format!(
                "queue {index}: {size} descriptors; set `queue-size` to a power of two up to {MAX_QUEUE_SIZE}"
            ))
        })?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.stopped_queue(index)?.addresses = Some([descriptors, available, used]);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.stopped_queue(index)?.base =
            base.try_into().map_err(|_| refuse(format!("queue {index}: base {base} exceeds 65535")))?;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let queue = self.queue(index)?;
        if queue.is_started {
            let (reply, stopped) = sync_channel(1);
            self.send(MessageKind::Stop { index, reply })?;
            let base = Control::wait(&stopped)?;
            let queue = self.queue(index)?;
            (queue.base, queue.is_started) = (base, false);
        }
        Ok(VhostUserVringState::new(index, self.queue(index)?.base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, kick: Option<File>) -> Result<()> {
        let kick = kick.ok_or_else(|| {
            refuse(format!("queue {index} without a kick eventfd; polling is not supported"))
        })?;
        self.start(index.into(), eventfd(kick, index)?)
    }

    fn set_vring_call(&mut self, index: u8, call: Option<File>) -> Result<()> {
        let call = call.map(|call| eventfd(call, index)).transpose()?;
        let queue = self.queue(index.into())?;
        if queue.is_started {
            let (reply, replaced) = sync_channel(1);
            self.send(MessageKind::Call { index: index.into(), call, reply })?;
            return Control::wait(&replaced);
        }
        queue.call = call;
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, error: Option<File>) -> Result<()> {
        let error = error.map(|error| eventfd(error, index)).transpose()?;
        let queue = self.queue(index.into())?;
        // The core has the descriptor of a started queue.
        if !queue.is_started {
            queue.error = error;
        }
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(PROTOCOL_FEATURES)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !(PROTOCOL_FEATURES | VhostUserProtocolFeatures::REPLY_ACK).bits();
        if unknown != 0 {
            return Err(refuse(format!("protocol features {unknown:#x} were not offered")));
        }
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.device.max_queues.into())
    }

    fn set_vring_enable(&mut self, index: u32, is_enabled: bool) -> Result<()> {
        let queue = self.queue(index)?;
        queue.is_enabled = is_enabled;
        if queue.is_started {
            let (reply, enabled) = sync_channel(1);
            self.send(MessageKind::Enable { index, is_enabled, reply })?;
            Control::wait(&enabled)?;
        }
        Ok(())
    }

    fn get_config(&mut self, offset: u32, len: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let config = self.device.config(offset, len);
        config
            .ok_or_else(|| refuse(format!("{len} bytes at {offset} are outside of the configuration space")))
    }

    /// A driver can write, and change nothing: the field for that was not offered.
    fn set_config(&mut self, _offset: u32, _bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        Ok(())
    }

    fn set_gpu_socket(&mut self, _socket: GpuBackend) -> Result<()> {
        Err(not_offered())
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(not_offered())
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let VhostUserInflight { num_queues, queue_size, .. } = *wanted;
        check_inflight(num_queues, queue_size)?;
        let inflight = InflightFile::create(num_queues, queue_size).map_err(refuse)?;
        let file = inflight.memory().memfd().try_clone_to_owned().map_err(refuse)?;
        let mmap_size = inflight.memory().bytes() as u64;
        Ok((VhostUserInflight { mmap_size, mmap_offset: 0, num_queues, queue_size }, File::from(file)))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_offset, num_queues, queue_size, .. } = *inflight;
        check_inflight(num_queues, queue_size)?;
        if self.queues.iter().any(|queue| queue.is_started) {
            return Err(refuse(
                "the file of requests in flight was changed while a queue is started; stop all first",
            ));
        }
        let opened = InflightFile::open(file.into(), mmap_offset, num_queues, queue_size);
        self.inflight = Some(opened.map_err(refuse)?);
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Err(not_offered())
    }

    fn add_mem_region(
        &mut self,
        _region: &VhostUserSingleMemoryRegion,
        _file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        Err(not_offered())
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Result<()> {
        Err(not_offered())
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(not_offered())
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(not_offered())
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(not_offered())
    }

    fn set_log_base(&mut self, _log: &vhost::vhost_user::message::VhostUserLog, _file: File) -> Result<()> {
        Err(not_offered())
    }
}

fn check_inflight(queues: u16, queue_size: u16) -> Result<()> {
    if queues > MAX_QUEUES || queue_size > MAX_QUEUE_SIZE {
        return Err(refuse(format!(
            "{queues} queues of {queue_size} descriptors; use at most {MAX_QUEUES} of {MAX_QUEUE_SIZE}"
        )));
    }
    Ok(())
}

/// Checks that a descriptor is an eventfd.
fn eventfd(file: File, index: u8) -> Result<OwnedFd> {
    let target = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(refuse)?;
    if target.as_os_str() != "anon_inode:[eventfd]" {
        return Err(refuse(format!("queue {index}: a descriptor is {}, not an eventfd", target.display())));
    }
    Ok(file.into())
}

/// Returns the error that ends the connection, with its reason.
fn refuse(reason: impl Display) -> Error {
    Error::ReqHandlerError(io::Error::other(reason.to_string()))
}

fn not_offered() -> Error {
    refuse("a message of a feature that was not offered")
}

const PROTOCOL_FEATURES: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::CONFIG)
    .union(VhostUserProtocolFeatures::INFLIGHT_SHMFD);
