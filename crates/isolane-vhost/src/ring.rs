//! One virtqueue, without I/O: [`Ring::poll`] returns requests, [`Ring::complete`] publishes their results.
//!
//! Invariants:
//! * Each request gets exactly one entry in the used ring, and is marked in the file of requests in flight until then.
//! * At most as many requests as the queue has descriptors are in flight, whatever the driver publishes.
//! * After an error the ring returns no more requests.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use virtio_queue::{Queue, QueueOwnedT, QueueT};

use crate::chain::{self, ChainError};
use crate::device::{Device, MAX_QUEUE_SIZE};
use crate::inflight::{Inflight, InflightError, InflightFile};
use crate::memory::GuestMemory;
use crate::request::{self, Command, Rejection, Reply, Status};

/// State of a virtqueue at its start.
#[derive(Clone, Copy, Debug)]
pub struct RingConfig {
    /// Number of the queue.
    pub index: u32,
    /// Number of descriptors.
    pub size: u16,
    /// Address of the descriptors in the monitor.
    pub descriptors: u64,
    /// Address of the available ring.
    pub available: u64,
    /// Address of the used ring.
    pub used: u64,
    /// The next index of the available ring.
    pub base: u16,
    /// Whether notifications depend on indices.
    pub event_index: bool,
}

/// A fault of a virtqueue.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// An unusable size.
    #[error("a queue of {0} descriptors; use a power of two up to {MAX_QUEUE_SIZE}")]
    Size(u16),
    /// A part outside of the memory.
    #[error("the {part} at {address:#x} is outside of the guest's memory")]
    Address {
        /// Part of the queue.
        part: &'static str,
        /// Its address in the monitor.
        address: u64,
    },
    /// An index of the ring, or its memory.
    #[error("{0}")]
    Queue(virtio_queue::Error),
    /// A malformed chain.
    #[error("{0}")]
    Chain(#[from] ChainError),
    /// A request that is in flight already.
    #[error("descriptor {0} is available again before its request has completed")]
    HeadInFlight(u16),
    /// The file of requests in flight.
    #[error("{0}")]
    Inflight(#[from] InflightError),
}

impl From<virtio_queue::Error> for RingError {
    fn from(error: virtio_queue::Error) -> RingError {
        RingError::Queue(error)
    }
}

/// A virtqueue.
pub struct Ring {
    config: RingConfig,
    device: Arc<Device>,
    memory: Arc<GuestMemory>,
    queue: Queue,
    inflight: Option<Inflight>,
    /// Requests of an earlier server, in their order.
    unfinished: VecDeque<u16>,
    /// Whether a request with this head is in flight.
    taken: Vec<bool>,
    in_flight: usize,
    is_failed: bool,
}

/// A request without a result.
#[derive(Debug)]
#[must_use = "the driver waits for a result"]
pub struct Permit {
    head: u16,
    reply: Reply,
}

/// A request that the driver has made available.
#[derive(Debug)]
pub struct Taken {
    /// To complete it.
    pub permit: Permit,
    /// The command, or the reason to reject it.
    pub command: Result<Command, Rejection>,
}

impl Ring {
    /// Starts a queue, with the requests that an earlier server has not finished.
    ///
    /// # Errors
    /// A queue that is not inside of the memory, or another unusable value.
    pub fn new(
        config: RingConfig,
        device: Arc<Device>,
        memory: Arc<GuestMemory>,
        inflight: Option<&InflightFile>,
    ) -> Result<Ring, RingError> {
        let mut queue = Queue::new(MAX_QUEUE_SIZE)?;
        queue.try_set_size(config.size).map_err(|_| RingError::Size(config.size))?;
        queue.set_event_idx(config.event_index);
        queue.set_ready(true);
        let mut ring = Ring {
            config,
            device,
            memory,
            queue,
            inflight: inflight.map(|file| file.queue(config.index, config.size)).transpose()?,
            unfinished: VecDeque::new(),
            taken: vec![false; config.size.into()],
            in_flight: 0,
            is_failed: false,
        };
        ring.locate()?;
        ring.recover()?;
        Ok(ring)
    }

    /// Finds the parts of the queue in the memory.
    fn locate(&mut self) -> Result<(), RingError> {
        let size = u64::from(self.config.size);
        let parts = [
            ("descriptor table", self.config.descriptors, 16 * size, 16),
            ("available ring", self.config.available, 6 + 2 * size, 2),
            ("used ring", self.config.used, 6 + 8 * size, 4),
        ];
        let mut found = [0; 3];
        for ((part, address, len, alignment), found) in parts.into_iter().zip(&mut found) {
            let guest = self.memory.guest_address(address).filter(|guest| {
                // `virtio-queue` takes address 0 for a queue that is not set.
                *guest != 0
                    && guest.is_multiple_of(alignment)
                    && self.memory.locate(*guest, len as u32, &mut Default::default())
            });
            *found = guest.ok_or(RingError::Address { part, address })?;
        }
        let [descriptors, available, used] = found.map(|at| (Some(at as u32), Some((at >> 32) as u32)));
        self.queue.set_desc_table_address(descriptors.0, descriptors.1);
        self.queue.set_avail_ring_address(available.0, available.1);
        self.queue.set_used_ring_address(used.0, used.1);
        Ok(())
    }

    fn recover(&mut self) -> Result<(), RingError> {
        let used = self.queue.used_idx(self.memory.rings(), Ordering::Acquire)?.0;
        self.queue.set_next_used(used);
        self.queue.set_next_avail(self.config.base);
        if let Some(inflight) = &mut self.inflight {
            self.unfinished = inflight.recover(used).into();
            // Requests complete in any order, so that the monitor cannot know the base.
            self.queue.set_next_avail(used.wrapping_add(self.unfinished.len() as u16));
        }
        Ok(())
    }

    /// Returns the number of requests that an earlier server has not finished, and this one has not taken.
    pub fn unfinished(&self) -> usize {
        self.unfinished.len()
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the next index of the available ring.
    pub fn base(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Uses other memory of the same guest.
    ///
    /// # Errors
    /// Memory that does not contain the queue.
    pub fn set_memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), RingError> {
        self.memory = memory;
        let located = self.locate();
        self.is_failed |= located.is_err();
        located
    }

    /// Allows the driver to skip notifications until [`Ring::poll`] finds no request.
    pub fn suppress_notifications(&mut self) {
        if !self.is_failed {
            // The next poll reports an error.
            let _ = self.queue.disable_notification(self.memory.rings());
        }
    }

    /// Returns the next request. After `None`, the driver notifies when it has one.
    ///
    /// # Errors
    /// The fault of the driver that ends the queue.
    pub fn poll(&mut self) -> Result<Option<Taken>, RingError> {
        if self.is_failed {
            return Ok(None);
        }
        let polled = self.next();
        self.is_failed = polled.is_err();
        polled
    }

    fn next(&mut self) -> Result<Option<Taken>, RingError> {
        let (head, is_new) = match self.unfinished.pop_front() {
            Some(head) => (head, false),
            None => match self.next_available()? {
                Some(head) => (head, true),
                None => return Ok(None),
            },
        };
        let chain = chain::read(&self.memory, self.queue.desc_table(), self.config.size, head)?;
        let taken = self.taken.get_mut(usize::from(head));
        if taken.is_none_or(|taken| std::mem::replace(taken, true)) {
            return Err(RingError::HeadInFlight(head));
        }
        let (reply, command) = request::parse(chain, &self.device)?;
        self.in_flight += 1;
        if is_new && let Some(inflight) = &mut self.inflight {
            inflight.start(head);
        }
        Ok(Some(Taken { permit: Permit { head, reply }, command }))
    }

    fn next_available(&mut self) -> Result<Option<u16>, RingError> {
        // A driver that makes a request available before notifications are enabled does not notify. The number of attempts
        // is limited, because a hostile one can change the index back.
        for _ in 0..MAX_ATTEMPTS {
            let memory = self.memory.rings();
            if let Some(chain) = self.queue.iter(memory)?.next() {
                return Ok(Some(chain.head_index()));
            }
            if !self.queue.enable_notification(memory)? {
                break;
            }
        }
        Ok(None)
    }

    /// Publishes the result of a request.
    pub fn complete(&mut self, permit: Permit, status: Status) {
        let Permit { head, reply } = permit;
        let written = reply.finish(status);
        if let Some(inflight) = &self.inflight {
            inflight.finish(head);
        }
        if let Err(error) = self.queue.add_used(self.memory.rings(), head, written) {
            // Only after a change of the memory: the ring was located in it.
            log::limited!(Error, "queue {}: {error}", self.config.index);
            self.is_failed = true;
        }
        if let Some(inflight) = &self.inflight {
            inflight.published(head, self.queue.next_used());
        }
        self.taken[usize::from(head)] = false;
        self.in_flight -= 1;
    }

    /// Whether the driver waits for a notification of the results since the last call.
    pub fn needs_notification(&mut self) -> bool {
        self.queue.needs_notification(self.memory.rings()).unwrap_or(true)
    }
}

const MAX_ATTEMPTS: usize = 3;
