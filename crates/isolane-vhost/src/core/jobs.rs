//! Requests at the volume: memory, start, and results.
//!
//! A write whose data is contiguous in the guest goes to the file of a volume in place. All other data is copied once.
//!
//! Invariant: requests get memory in the order of their arrival, so that a large one is not starved by small ones.

use isolane_memory::{Payload, pages_for};
use isolane_volume::{BlockRange, Outcome, Request, Shutdown, VolumeError};
use slotmap::{DefaultKey, Key, KeyData};

use super::Core;
use crate::memory::GuestBuffer;
use crate::request::{Command, Rejection, Status};
use crate::ring::Permit;

/// A request at the volume.
pub(super) struct Job {
    ring: DefaultKey,
    permit: Permit,
    kind: Kind,
}

enum Kind {
    /// Destination of the data.
    Read(GuestBuffer),
    Write,
    Flush,
    Discard,
    WriteZeroes,
}

impl Kind {
    /// Whether a later request of another queue must not overtake it.
    fn is_change(&self) -> bool {
        match self {
            Kind::Write | Kind::Discard | Kind::WriteZeroes => true,
            Kind::Read(_) | Kind::Flush => false,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Kind::Read(_) => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::Discard => "discard",
            Kind::WriteZeroes => "write zeroes",
        }
    }
}

/// A request that waits for memory.
pub(super) struct Waiting {
    /// Its tag.
    tag: u64,
    len: usize,
    transfer: Transfer,
}

enum Transfer {
    Read(BlockRange),
    Write(BlockRange, GuestBuffer, bool),
}

impl Core {
    /// Starts a command at the volume.
    pub(super) fn start(&mut self, ring: DefaultKey, permit: Permit, command: Result<Command, Rejection>) {
        let Some(active) = self.rings.get_mut(ring) else { return };
        let fua = active.is_write_through;
        let (kind, request) = match command {
            Err(Rejection { status, reason }) => {
                let (peer, index) = (&active.peer, active.index);
                log::limited!(Warn, "{peer}: queue {index}: request rejected: {reason}");
                return self.finish(ring, permit, status);
            }
            Ok(Command::Id(data)) => {
                data.copy_in(0, &self.device.id[..data.len().min(self.device.id.len())]);
                return self.finish(ring, permit, Status::Ok);
            }
            Ok(Command::Read { lba, blocks, data }) => {
                let len = data.len();
                let transfer = Transfer::Read(BlockRange { lba, blocks });
                return self.transfer(Job { ring, permit, kind: Kind::Read(data) }, len, transfer);
            }
            Ok(Command::Write { lba, blocks, data }) => match data.in_place().filter(|_| self.has_file) {
                Some(data) => (Kind::Write, Request::Write { lba, blocks, data, fua }),
                None => {
                    let len = data.len();
                    let transfer = Transfer::Write(BlockRange { lba, blocks }, data, fua);
                    return self.transfer(Job { ring, permit, kind: Kind::Write }, len, transfer);
                }
            },
            Ok(Command::Flush) => (Kind::Flush, Request::Flush),
            Ok(Command::Discard(ranges)) => (Kind::Discard, Request::Deallocate { ranges, fua }),
            Ok(Command::WriteZeroes { range: BlockRange { lba, blocks }, deallocate }) => {
                (Kind::WriteZeroes, Request::WriteZeroes { lba, blocks, fua, deallocate })
            }
        };
        let tag = self.jobs.insert(Job { ring, permit, kind }).data().as_ffi();
        self.queue.start(tag, request, &mut self.reactor, &mut self.pool);
    }

    /// Starts a read or a write that needs memory.
    fn transfer(&mut self, job: Job, len: usize, transfer: Transfer) {
        let tag = self.jobs.insert(job).data().as_ffi();
        let waiting = Waiting { tag, len, transfer };
        if self.waiting.is_empty() && self.has_memory(len) {
            self.submit(waiting);
        } else {
            self.waiting.push_back(waiting);
        }
    }

    fn submit(&mut self, Waiting { tag, len, transfer }: Waiting) {
        let request = match transfer {
            Transfer::Read(BlockRange { lba, blocks }) => {
                if !self.reads_into_pool {
                    self.read_pages += pages_for(len);
                }
                Request::Read { lba, blocks }
            }
            Transfer::Write(BlockRange { lba, blocks }, source, fua) => {
                let Some(mut data) = self.pool.buffer(len) else { unreachable!("the pool has free pages") };
                source.copy_to(&mut data);
                Request::Write { lba, blocks, data, fua }
            }
        };
        self.queue.start(tag, request, &mut self.reactor, &mut self.pool);
    }

    fn has_memory(&mut self, len: usize) -> bool {
        pages_for(len) + self.read_pages <= self.pool.free_pages()
    }

    /// Whether the first waiting request can have memory.
    pub(super) fn can_grant(&mut self) -> bool {
        self.waiting.front().map(|first| first.len).is_some_and(|len| self.has_memory(len))
    }

    /// Starts requests that wait for memory, in order.
    pub(super) fn grant_memory(&mut self) {
        while self.can_grant() {
            if let Some(waiting) = self.waiting.pop_front() {
                self.submit(waiting);
            }
        }
    }

    /// Publishes the results of requests that the volume has completed.
    pub(super) fn complete_jobs(&mut self) {
        while let Some((tag, outcome)) = self.queue.poll() {
            if tag == Shutdown::FLUSH_TAG {
                self.shutdown.end(outcome, &self.queue);
                continue;
            }
            let Some(job) = self.jobs.remove(KeyData::from_ffi(tag).into()) else {
                unreachable!("the volume completed an unknown request")
            };
            self.complete(job, outcome);
        }
    }

    fn complete(&mut self, Job { ring, permit, kind }: Job, outcome: Outcome) {
        if let Kind::Read(target) = &kind
            && !self.reads_into_pool
        {
            self.read_pages -= pages_for(target.len());
        }
        let is_started = self.rings.is_started(ring);
        if kind.is_change() && !is_started {
            self.remove_orphan();
        }
        let status = match outcome {
            Ok(data) => {
                if let Kind::Read(target) = kind
                    && is_started
                {
                    self.deliver(data, &target);
                }
                Status::Ok
            }
            Err(error) => {
                if !matches!(error, VolumeError::OutOfRange { .. } | VolumeError::ReadOnly) {
                    log::limited!(Error, "{}: {} failed: {error}", self.queue.volume().name(), kind.name());
                }
                Status::IoError
            }
        };
        self.finish(ring, permit, status);
    }

    /// Copies the data of a read to the guest.
    fn deliver(&mut self, data: Payload, target: &GuestBuffer) {
        let (data, mut offset) = (data.into_private(), 0);
        for slice in data.slices(0, data.len().min(target.len())) {
            target.copy_in(offset, slice);
            offset += slice.len();
        }
        self.pool.recycle_payload(data);
    }

    /// Publishes a result, unless the queue has ended.
    fn finish(&mut self, key: DefaultKey, permit: Permit, status: Status) {
        if let Some(ring) = self.rings.get_mut(key) {
            ring.ring.complete(permit, status);
            self.rings.list_completed(key);
        }
    }

    /// Ends the requests of closed queues that wait for memory, and counts the changes at the volume.
    pub(super) fn abandon_jobs(&mut self) {
        let (jobs, rings) = (&mut self.jobs, &self.rings);
        self.waiting.retain(|waiting| {
            let key = KeyData::from_ffi(waiting.tag).into();
            let is_started = jobs.get(key).is_some_and(|job| rings.is_started(job.ring));
            if !is_started {
                jobs.remove(key);
            }
            is_started
        });
        let is_orphan = |job: &&Job| job.kind.is_change() && !rings.is_started(job.ring);
        self.orphans = jobs.values().filter(is_orphan).count();
    }

    fn remove_orphan(&mut self) {
        self.orphans -= 1;
        if self.orphans == 0 {
            self.rings.release().into_iter().for_each(|key| self.finish_stop(key));
        }
    }
}

/// Requests of all queues at the volume, or waiting for memory.
pub(super) const MAX_JOBS: usize = 16384;
