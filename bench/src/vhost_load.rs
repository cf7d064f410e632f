//! A minimal driver of a virtio block device over vhost-user, without a virtual machine.
//!
//! Shows what an export does for a machine: it has the memory and the queue of a guest, and notifies the device as Linux
//! does (EVENT_IDX). It spins over the used ring instead of waiting for interrupts, as `isolane bench --mode poll` does
//! over its connections. It checks the status of each request, and nothing else.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use vhost::vhost_user::message::VhostUserInflight;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

use crate::Report;
use crate::round_robin::measure;

/// Read or write 4 KiB at a time at random offsets of a device that `isolane export --vhost-user-blk` has
#[derive(Clone, Debug, clap::Parser)]
pub struct Options {
    /// Socket of the export
    pub socket: PathBuf,
    /// Write instead of reading
    #[arg(long)]
    pub write: bool,
    /// Requests in flight
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub depth: u16,
    /// Size of the volume in bytes, which is written once before the measurement
    #[arg(long, default_value_t = 256 << 20)]
    pub span: u64,
    /// Seconds to measure, after a tenth of that to warm up
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
}

/// Measures.
pub fn run(options: &Options) -> io::Result<Report> {
    let blocks = options.span / BLOCK;
    if blocks == 0 {
        return Err(io::Error::other("--span is below 4096"));
    }
    let mut driver = Driver::connect(options)?;
    driver.fill(blocks)?;
    driver.choose = Choose::Random(blocks);
    driver.set_type(if options.write { OUT } else { IN })?;
    for slot in 0..options.depth {
        driver.submit(slot)?;
    }
    driver.notify()?;
    let measured = Duration::from_secs_f64(options.seconds);
    let drivers = std::slice::from_mut(&mut driver);
    let (operations, elapsed) = measure(drivers, measured, Driver::turn, |_| ())?;
    let iops = operations.iter().sum::<u64>() as f64 / elapsed.as_secs_f64();
    Ok(Report::new(iops, BLOCK as usize, options.depth.into()))
}

/// The memory of a guest, with one queue. Each slot has a chain of header, data, and status.
struct Driver {
    memory: GuestMemoryMmap,
    _frontend: Frontend,
    kick: EventFd,
    _call: EventFd,
    slots: u16,
    /// Next index of the available ring, and the one that the device was notified of.
    available: u16,
    notified: u16,
    /// Next index of the used ring.
    used: u16,
    choose: Choose,
}

/// Blocks of the next requests.
enum Choose {
    Next(u64),
    Random(u64),
}

impl Driver {
    fn connect(options: &Options) -> io::Result<Driver> {
        let memfd = File::from(memfd_create("vhost-load", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        memfd.set_len(MEMORY_BYTES)?;
        fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: BASE,
            memory_size: MEMORY_BYTES,
            userspace_addr: BASE,
            mmap_offset: 0,
            mmap_handle: memfd.as_raw_fd(),
        };
        let range = (GuestAddress(BASE), MEMORY_BYTES as usize, Some(FileOffset::new(memfd, 0)));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).map_err(io::Error::other)?;
        let (kick, call) = (EventFd::new(0)?, EventFd::new(0)?);
        let frontend = start(options, region, &kick, &call).map_err(io::Error::other)?;
        let driver = Driver {
            memory,
            _frontend: frontend,
            kick,
            _call: call,
            slots: options.depth,
            available: 0,
            notified: 0,
            used: 0,
            choose: Choose::Next(0),
        };
        driver.set_type(OUT)?;
        Ok(driver)
    }

    fn put<T: vm_memory::ByteValued>(&self, at: u64, value: T) -> io::Result<()> {
        self.memory.write_obj(value, GuestAddress(BASE + at)).map_err(io::Error::other)
    }

    /// Writes the descriptors of all slots.
    fn set_type(&self, kind: u32) -> io::Result<()> {
        for slot in 0..self.slots {
            let (at, head) = (SLOTS + u64::from(slot) * SLOT_BYTES, 3 * slot);
            self.put(at, kind)?;
            let data_flags = if kind == IN { NEXT | WRITE } else { NEXT };
            let parts = [(at, 16, NEXT), (at + DATA, BLOCK as u32, data_flags), (at + STATUS, 1, WRITE)];
            for (index, (address, len, flags)) in (head..).zip(parts) {
                let entry = u64::from(index) * 16;
                self.put(entry, BASE + address)?;
                self.put(entry + 8, len)?;
                self.put(entry + 12, flags)?;
                self.put(entry + 14, index + 1)?;
            }
        }
        Ok(())
    }

    fn submit(&mut self, slot: u16) -> io::Result<()> {
        let block = match &mut self.choose {
            Choose::Next(next) => std::mem::replace(next, *next + 1),
            Choose::Random(blocks) => fastrand::u64(..*blocks),
        };
        let at = SLOTS + u64::from(slot) * SLOT_BYTES;
        self.put(at + 8, block * (BLOCK / 512))?;
        self.put(at + STATUS, u8::MAX)?;
        self.put(AVAILABLE + 4 + 2 * u64::from(self.available % SIZE), 3 * slot)?;
        self.available = self.available.wrapping_add(1);
        Ok(())
    }

    /// Publishes the submitted requests, and notifies the device if it waits for one of them.
    fn notify(&mut self) -> io::Result<()> {
        let (old, new) = (self.notified, self.available);
        self.store(AVAILABLE + 2, new)?;
        fence(Ordering::SeqCst);
        let event = self.load(USED + 4 + 8 * u64::from(SIZE))?;
        self.notified = new;
        if new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old) {
            self.kick.write(1)?;
        }
        Ok(())
    }

    /// Takes results, and returns the slots of their requests.
    fn poll(&mut self, slots: &mut Vec<u16>) -> io::Result<()> {
        let used = self.load(USED + 2)?;
        while self.used != used {
            let at = USED + 4 + 8 * u64::from(self.used % SIZE);
            let head: u32 = self.memory.read_obj(GuestAddress(BASE + at)).map_err(io::Error::other)?;
            let slot = (head / 3) as u16;
            let status = SLOTS + u64::from(slot) * SLOT_BYTES + STATUS;
            let status: u8 = self.memory.read_obj(GuestAddress(BASE + status)).map_err(io::Error::other)?;
            if slot >= self.slots || status != 0 {
                return Err(io::Error::other(format!("request {head} ended with status {status}")));
            }
            slots.push(slot);
            self.used = self.used.wrapping_add(1);
        }
        // No notification before the index that is farthest away.
        self.store(AVAILABLE + 4 + 2 * u64::from(SIZE), used.wrapping_add(1 << 15))
    }

    /// Takes results, and submits the next request for each.
    fn turn(&mut self) -> io::Result<u64> {
        let mut slots = Vec::with_capacity(self.slots.into());
        self.poll(&mut slots)?;
        if slots.is_empty() {
            return Ok(0);
        }
        slots.iter().try_for_each(|slot| self.submit(*slot))?;
        self.notify()?;
        Ok(slots.len() as u64)
    }

    /// Writes every block once.
    fn fill(&mut self, blocks: u64) -> io::Result<()> {
        let (mut free, mut left, mut in_flight): (Vec<u16>, _, _) = ((0..self.slots).collect(), blocks, 0);
        let deadline = Instant::now() + FILL_TIMEOUT;
        while left + in_flight > 0 {
            while left > 0
                && let Some(slot) = free.pop()
            {
                self.submit(slot)?;
                (left, in_flight) = (left - 1, in_flight + 1);
            }
            self.notify()?;
            let free_before = free.len();
            self.poll(&mut free)?;
            in_flight -= (free.len() - free_before) as u64;
            if Instant::now() > deadline {
                return Err(io::Error::other("the device does not complete requests"));
            }
        }
        Ok(())
    }

    fn store(&self, at: u64, value: u16) -> io::Result<()> {
        self.memory.store(value, GuestAddress(BASE + at), Ordering::Release).map_err(io::Error::other)
    }

    fn load(&self, at: u64) -> io::Result<u16> {
        self.memory.load(GuestAddress(BASE + at), Ordering::Acquire).map_err(io::Error::other)
    }
}

/// Negotiates as QEMU does, and starts the queue.
fn start(
    options: &Options,
    region: VhostUserMemoryRegionInfo,
    kick: &EventFd,
    call: &EventFd,
) -> vhost::Result<Frontend> {
    let mut frontend = Frontend::connect(&options.socket, 1)?;
    frontend.set_owner()?;
    let features = frontend.get_features()?;
    let protocol = frontend.get_protocol_features()?;
    frontend.set_protocol_features(protocol)?;
    frontend.set_features(features)?;
    frontend.set_mem_table(&[region])?;
    let wanted = VhostUserInflight { num_queues: 1, queue_size: SIZE, ..Default::default() };
    let (inflight, file) = frontend.get_inflight_fd(&wanted)?;
    frontend.set_inflight_fd(&inflight, file.as_raw_fd())?;
    let addresses = VringConfigData {
        queue_max_size: SIZE,
        queue_size: SIZE,
        flags: 0,
        desc_table_addr: BASE,
        used_ring_addr: BASE + USED,
        avail_ring_addr: BASE + AVAILABLE,
        log_addr: None,
    };
    frontend.set_vring_num(0, SIZE)?;
    frontend.set_vring_base(0, 0)?;
    frontend.set_vring_addr(0, &addresses)?;
    frontend.set_vring_kick(0, kick)?;
    frontend.set_vring_call(0, call)?;
    frontend.set_vring_enable(0, true)?;
    Ok(frontend)
}

const BLOCK: u64 = 4096;
/// Address of the memory in the guest, and of the monitor.
const BASE: u64 = 1 << 20;
const MEMORY_BYTES: u64 = 1 << 20;
/// Descriptors of the queue: three for each request.
const SIZE: u16 = 256;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const SLOTS: u64 = 0x10000;
const SLOT_BYTES: u64 = 0x2000;
/// In a slot, after the header.
const STATUS: u64 = 0x10;
const DATA: u64 = 0x1000;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const IN: u32 = 0;
const OUT: u32 = 1;
const FILL_TIMEOUT: Duration = Duration::from_secs(60);
