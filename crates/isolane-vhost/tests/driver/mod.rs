//! The other side of the server: a monitor with guest memory in a memfd, and the driver of a virtio block device.

#![allow(dead_code)] // Each test uses a part.

pub mod fixture;
pub mod waiting;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use isolane_shm::SharedMemory;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

/// Address of the memory in the guest, and in the monitor.
pub const GUEST: u64 = 0x10_0000;
pub const USER: u64 = 0x7f00_0000_0000;
pub const MEMORY_BYTES: usize = 64 << 20;
/// Descriptors of a queue.
pub const SIZE: u16 = 64;
const QUEUE_BYTES: u64 = 0x4000;
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Memory of requests, after the queues.
const SLOTS: u64 = 1 << 20;
const SLOT_BYTES: u64 = 64 << 10;
/// In a slot: header, status, indirect table, data.
const STATUS: u64 = 0x10;
const TABLE: u64 = 0x100;
const DATA: u64 = 0x1000;
const TIMEOUT: Duration = Duration::from_secs(60);

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;
pub const NO_STATUS: u8 = 0xee;

/// A descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

/// Guest memory with its queues, which survives a connection.
pub struct Guest {
    pub memory: SharedMemory,
    pub inflight: Option<(VhostUserInflight, File)>,
    queues: HashMap<usize, DriverQueue>,
    pub is_indirect: bool,
    pub event_index: bool,
}

struct DriverQueue {
    available: u16,
    used: u16,
    free: Vec<u16>,
    kick: EventFd,
    call: EventFd,
    error: EventFd,
}

/// A connection of the monitor.
pub struct Monitor {
    pub frontend: Frontend,
}

impl Monitor {
    /// Connects, and negotiates all features but `without`.
    pub fn connect(path: &Path, without: u64) -> Monitor {
        let mut frontend = Frontend::connect(path, 256).unwrap();
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        frontend.set_protocol_features(protocol).unwrap();
        assert!(protocol.contains(VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::INFLIGHT_SHMFD));
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend.set_features(features & !without).unwrap();
        Monitor { frontend }
    }

    pub fn config(&mut self, offset: u32, len: usize) -> vhost::Result<Vec<u8>> {
        let flags = VhostUserConfigFlags::WRITABLE;
        self.frontend.get_config(offset, len as u32, flags, &vec![0; len]).map(|(_, bytes)| bytes)
    }

    /// Announces the memory.
    pub fn set_memory(&self, guest: &Guest) {
        self.frontend.set_mem_table(&[guest.region()]).unwrap();
    }

    /// Announces the file of requests in flight, which the server creates first.
    pub fn set_inflight(&mut self, guest: &mut Guest, queues: u16) {
        if guest.inflight.is_none() {
            let wanted = VhostUserInflight { num_queues: queues, queue_size: SIZE, ..Default::default() };
            guest.inflight = Some(self.frontend.get_inflight_fd(&wanted).unwrap());
        }
        let Some((inflight, file)) = &guest.inflight else { unreachable!() };
        self.frontend.set_inflight_fd(inflight, file.as_raw_fd()).unwrap();
    }

    /// Starts a queue, at the used index as QEMU does.
    pub fn start(&mut self, guest: &mut Guest, index: usize) {
        self.try_start(guest, index, SIZE, USER).unwrap();
    }

    pub fn try_start(&mut self, guest: &mut Guest, index: usize, size: u16, user: u64) -> vhost::Result<()> {
        let start = user + index as u64 * QUEUE_BYTES;
        let addresses = VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: 0,
            desc_table_addr: start + DESCRIPTORS,
            used_ring_addr: start + USED,
            avail_ring_addr: start + AVAILABLE,
            log_addr: None,
        };
        let base = guest.used_index(index);
        let queue = guest.queue(index);
        self.frontend.set_vring_num(index, size)?;
        self.frontend.set_vring_base(index, base)?;
        self.frontend.set_vring_addr(index, &addresses)?;
        self.frontend.set_vring_err(index, &queue.error)?;
        self.frontend.set_vring_kick(index, &queue.kick)?;
        self.frontend.set_vring_call(index, &queue.call)?;
        self.frontend.set_vring_enable(index, true)
    }
}

impl Guest {
    pub fn new() -> Guest {
        let memory = SharedMemory::create("guest", MEMORY_BYTES).unwrap();
        Guest { memory, inflight: None, queues: HashMap::new(), is_indirect: false, event_index: true }
    }

    pub fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST,
            memory_size: MEMORY_BYTES as u64,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: self.memory.memfd().as_raw_fd(),
        }
    }

    fn queue(&mut self, index: usize) -> &mut DriverQueue {
        let eventfd = || EventFd::new(libc_nonblock()).unwrap();
        self.queues.entry(index).or_insert_with(|| DriverQueue {
            available: 0,
            used: 0,
            free: (0..SIZE).rev().collect(),
            kick: eventfd(),
            call: eventfd(),
            error: eventfd(),
        })
    }

    pub fn read<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.copy_out(offset, &mut bytes).unwrap();
        bytes
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.memory.copy_in(offset, bytes).unwrap();
    }

    pub fn used_index(&self, index: usize) -> u16 {
        u16::from_le_bytes(self.read(index as u64 * QUEUE_BYTES + USED + 2))
    }

    /// Offset of the memory of a request.
    fn slot(index: usize, head: u16) -> u64 {
        SLOTS + (index as u64 * u64::from(SIZE) + u64::from(head)) * SLOT_BYTES
    }

    /// Writes an entry of the descriptor table of a queue.
    pub fn set_descriptor(&self, index: usize, at: u16, descriptor: Descriptor) {
        self.set_entry(index as u64 * QUEUE_BYTES + DESCRIPTORS, at, descriptor);
    }

    pub fn set_entry(&self, table: u64, at: u16, Descriptor { address, len, flags, next }: Descriptor) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.write(table + 16 * u64::from(at), &bytes);
    }

    /// Makes a chain available, and notifies the device.
    pub fn publish(&mut self, index: usize, head: u16) {
        let queue = self.queue(index);
        let available = queue.available;
        queue.available = available.wrapping_add(1);
        let ring = index as u64 * QUEUE_BYTES + AVAILABLE;
        self.write(ring + 4 + 2 * u64::from(available % SIZE), &head.to_le_bytes());
        self.set_available(index, available.wrapping_add(1));
        self.kick(index);
    }

    pub fn set_available(&mut self, index: usize, available: u16) {
        self.write(index as u64 * QUEUE_BYTES + AVAILABLE + 2, &available.to_le_bytes());
    }

    pub fn kick(&mut self, index: usize) {
        self.queue(index).kick.write(1).unwrap();
    }

    /// Makes reads of the kick descriptor block, or writes of the call descriptor, whose counter is then full.
    pub fn block_server(&mut self, index: usize, is_call: bool) {
        let queue = self.queue(index);
        let eventfd = if is_call { &queue.call } else { &queue.kick };
        if is_call {
            let _ = eventfd.read();
            eventfd.write(u64::MAX - 1).unwrap();
        }
        // The flag belongs to every descriptor of the eventfd.
        let (sender, receiver) = UnixStream::pair().unwrap();
        sender.send_with_fd(&[0][..], eventfd.as_raw_fd()).unwrap();
        let (_, duplicate) = receiver.recv_with_fd(&mut [0]).unwrap();
        rustix::io::ioctl_fionbio(duplicate.unwrap(), false).unwrap();
    }

    /// Waits for results without their notification.
    pub fn wait_used(&self, index: usize, used: u16) {
        let limit = Instant::now() + TIMEOUT;
        while self.used_index(index) != used {
            assert!(Instant::now() < limit, "no result in {TIMEOUT:?}");
            std::thread::yield_now();
        }
    }

    /// Submits a request with data to the device, or for data from it, in parts of the given lengths.
    pub fn submit(
        &mut self,
        index: usize,
        kind: u32,
        sector: u64,
        data: &[u8],
        parts: &[u32],
        is_read: bool,
    ) -> u16 {
        let is_indirect = self.is_indirect;
        let queue = self.queue(index);
        let count = if is_indirect { 1 } else { parts.len() + 2 };
        let heads: Vec<u16> = (0..count).map(|_| queue.free.pop().expect("a free descriptor")).collect();
        let head = heads[0];
        let slot = Guest::slot(index, head);
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.write(slot, &header);
        self.write(slot + STATUS, &[NO_STATUS]);
        self.write(slot + DATA, data);
        let mut buffers = vec![(slot, 16, 0)];
        let mut at = slot + DATA;
        for len in parts {
            buffers.push((at, *len, if is_read { WRITE } else { 0 }));
            // Parts of one request are not adjacent.
            at += u64::from(*len);
        }
        buffers.push((slot + STATUS, 1, WRITE));
        let last = buffers.len() - 1;
        for (at, (offset, len, flags)) in buffers.into_iter().enumerate() {
            let (next, flags) = if at == last { (0, flags) } else { (at as u16 + 1, flags | NEXT) };
            let descriptor = Descriptor { address: GUEST + offset, len, flags, next };
            if is_indirect {
                self.set_entry(slot + TABLE, at as u16, descriptor);
            } else {
                let next = heads.get(at + 1).copied().unwrap_or(0);
                self.set_descriptor(index, heads[at], Descriptor { next, ..descriptor });
            }
        }
        if is_indirect {
            let len = 16 * (last as u32 + 1);
            let table = Descriptor { address: GUEST + slot + TABLE, len, flags: INDIRECT, next: 0 };
            self.set_descriptor(index, head, table);
        }
        self.publish(index, head);
        head
    }

    /// Waits for results, and returns the heads of all of them.
    pub fn wait(&mut self, index: usize) -> Vec<u16> {
        let limit = Instant::now() + TIMEOUT;
        loop {
            let used = self.used_index(index);
            let ring = index as u64 * QUEUE_BYTES + USED;
            let size = u64::from(SIZE);
            let first = self.queue(index).used;
            let heads: Vec<u16> = (0..used.wrapping_sub(first))
                .map(|at| {
                    let at = u64::from(first.wrapping_add(at)) % size;
                    u32::from_le_bytes(self.read(ring + 4 + 8 * at)) as u16
                })
                .collect();
            if !heads.is_empty() {
                self.queue(index).used = used;
                // The driver requests a notification for the next result.
                self.write(index as u64 * QUEUE_BYTES + AVAILABLE + 4 + 2 * size, &used.to_le_bytes());
                if self.used_index(index) == used {
                    return heads;
                }
                self.queue(index).used = first;
                continue;
            }
            assert!(Instant::now() < limit, "no result in {TIMEOUT:?}");
            // A lost notification would end the test here.
            self.wait_call(index);
        }
    }

    /// Waits for a notification of the device.
    fn wait_call(&mut self, index: usize) {
        let limit = Instant::now() + TIMEOUT;
        while self.queue(index).call.read().is_err() {
            assert!(Instant::now() < limit, "no notification in {TIMEOUT:?}");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Waits for the notification of a fault.
    pub fn wait_error(&mut self, index: usize) {
        let limit = Instant::now() + TIMEOUT;
        while self.queue(index).error.read().is_err() {
            assert!(Instant::now() < limit, "no error in {TIMEOUT:?}");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Returns status and data of a finished request, and frees its descriptors.
    pub fn take(&mut self, index: usize, head: u16, len: usize) -> (u8, Vec<u8>) {
        let slot = Guest::slot(index, head);
        let [status] = self.read(slot + STATUS);
        let mut data = vec![0; len];
        self.memory.copy_out(slot + DATA, &mut data).unwrap();
        let mut at = head;
        loop {
            self.queue(index).free.push(at);
            let entry: [u8; 16] = self.read(index as u64 * QUEUE_BYTES + DESCRIPTORS + 16 * u64::from(at));
            if u16::from_le_bytes([entry[12], entry[13]]) & NEXT == 0 {
                return (status, data);
            }
            at = u16::from_le_bytes([entry[14], entry[15]]);
        }
    }

    /// Runs one request to its end. Returns status and data.
    pub fn run(&mut self, index: usize, kind: u32, sector: u64, data: &[u8], len: u32) -> (u8, Vec<u8>) {
        let is_read = !matches!(kind, 1 | 11 | 13);
        let parts: &[u32] = if len == 0 { &[] } else { &[len] };
        let head = self.submit(index, kind, sector, data, parts, is_read);
        assert_eq!(self.wait(index), [head]);
        self.take(index, head, len as usize)
    }

    /// Address of the data of a request in the guest.
    pub fn data_address(index: usize, head: u16) -> u64 {
        GUEST + Guest::slot(index, head) + DATA
    }

    /// Takes a free descriptor for a chain that the test writes.
    pub fn free_descriptor(&mut self, index: usize) -> u16 {
        self.queue(index).free.pop().expect("a free descriptor")
    }
}

fn libc_nonblock() -> i32 {
    rustix::fs::OFlags::NONBLOCK.bits() as i32
}
