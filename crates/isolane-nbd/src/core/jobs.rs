//! Requests at the volume: memory, start, and replies.
//!
//! Invariant: requests get memory in the order of their arrival, so that a large one is not starved by small ones.

use isolane_memory::pages_for;
use isolane_volume::{BlockRange, Extent, Outcome, Request, VolumeError};
use slotmap::{DefaultKey, Key, KeyData};
use smallvec::{SmallVec, smallvec};

use super::{Core, Shutdown};
use crate::config::ShutdownError;
use crate::{Command, Connection, Permit};

/// A request at the volume.
pub(super) struct Job {
    pub client: DefaultKey,
    permit: Permit,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Change,
    Flush,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Change => "write",
            Kind::Flush => "flush",
        }
    }
}

/// A request that waits for memory.
pub(super) enum Waiting {
    /// A client that waits for the memory of a write.
    Write(DefaultKey),
    Read {
        job: Job,
        request: Request,
        len: usize,
    },
}

impl Core {
    /// Starts a command at the volume.
    pub(super) fn start(&mut self, client: DefaultKey, permit: Permit, command: Command) {
        let (kind, request) = match command {
            Command::Read { lba, blocks } => (Kind::Read, Request::Read { lba, blocks }),
            Command::Write { lba, blocks, data, fua } => {
                (Kind::Change, Request::Write { lba, blocks, data, fua })
            }
            Command::Flush => (Kind::Flush, Request::Flush),
            Command::Trim { lba, blocks, fua } => {
                (Kind::Change, Request::Deallocate { ranges: smallvec![BlockRange { lba, blocks }], fua })
            }
            Command::WriteZeroes { lba, blocks, fua, deallocate } => {
                (Kind::Change, Request::WriteZeroes { lba, blocks, fua, deallocate })
            }
            Command::BlockStatus { lba, blocks, one } => {
                let extents = self.extents(lba, blocks, one);
                return self.reply(client, |conn| conn.complete_status(permit, &extents));
            }
            Command::Nothing => return self.reply(client, |conn| conn.complete(permit)),
        };
        let job = Job { client, permit, kind };
        let len = match request {
            Request::Read { blocks, .. } if self.reads_into_pool => {
                blocks as usize * self.export.info.block_size as usize
            }
            _ => 0,
        };
        if len > 0 && !(self.waiting.is_empty() && self.has_memory(len)) {
            return self.waiting.push_back(Waiting::Read { job, request, len });
        }
        self.submit(job, request);
    }

    pub(super) fn submit(&mut self, job: Job, request: Request) {
        let tag = self.jobs.insert(job).data().as_ffi();
        self.queue.start(tag, request, &mut self.reactor, &mut self.pool);
    }

    /// Returns the first extents of blocks.
    fn extents(&self, mut lba: u64, mut blocks: u64, one: bool) -> SmallVec<[Extent; MAX_EXTENTS]> {
        let mut extents: SmallVec<[Extent; MAX_EXTENTS]> = SmallVec::new();
        let count = if one { 1 } else { MAX_EXTENTS };
        // An extent can be a part of a longer one.
        for _ in 0..2 * MAX_EXTENTS {
            let next = self.queue.volume().extent(lba, blocks);
            let is_full = extents.len() == count;
            match extents.last_mut() {
                Some(last) if last.is_hole == next.is_hole => last.blocks += next.blocks,
                _ if is_full => break,
                _ => extents.push(next),
            }
            lba += next.blocks;
            blocks -= next.blocks;
            if blocks == 0 {
                break;
            }
        }
        extents
    }

    /// Returns the memory that a waiting request needs, in bytes.
    pub(super) fn needed(&mut self, waiting: &Waiting) -> usize {
        match waiting {
            Waiting::Write(key) => self.clients.get_mut(*key).and_then(|client| client.awaited).unwrap_or(0),
            Waiting::Read { len, .. } => *len,
        }
    }

    pub(super) fn has_memory(&mut self, len: usize) -> bool {
        pages_for(len) <= self.pool.free_pages()
    }

    /// Whether the first waiting request can have memory.
    pub(super) fn can_grant(&mut self) -> bool {
        let Some(first) = self.waiting.pop_front() else { return false };
        let len = self.needed(&first);
        self.waiting.push_front(first);
        self.has_memory(len)
    }

    /// Starts requests that wait for memory, in order.
    pub(super) fn grant_memory(&mut self) {
        while self.can_grant() {
            match self.waiting.pop_front() {
                Some(Waiting::Read { job, request, .. }) => self.submit(job, request),
                Some(Waiting::Write(key)) => {
                    self.grant(key);
                    self.resume(key);
                }
                None => {}
            }
        }
    }

    /// Provides the memory of a write, which the pool has.
    pub(super) fn grant(&mut self, key: DefaultKey) {
        let Some(client) = self.clients.get_mut(key) else { return };
        if let Some(len) = client.awaited.take() {
            let Some(buffer) = self.pool.buffer(len) else { unreachable!("the pool has free pages") };
            client.conn.receive_into(buffer);
        }
    }

    /// Replies to the requests that the volume has completed.
    pub(super) fn complete_jobs(&mut self) {
        while let Some((tag, outcome)) = self.queue.poll() {
            if tag == FLUSH_TAG {
                self.shutdown = Some(Shutdown::Ended(outcome.map(drop).map_err(|error| {
                    ShutdownError::Flush { name: self.queue.volume().name().to_owned(), error }
                })));
                continue;
            }
            let Some(job) = self.jobs.remove(KeyData::from_ffi(tag).into()) else {
                unreachable!("the volume completed an unknown request")
            };
            self.complete(job, outcome);
        }
    }

    pub(super) fn complete(&mut self, Job { client, permit, kind }: Job, outcome: Outcome) {
        match outcome {
            Ok(data) if self.clients.get_mut(client).is_none() => self.pool.recycle_payload(data),
            Ok(data) if kind == Kind::Read => self.reply(client, |conn| conn.complete_read(permit, data)),
            Ok(_) => self.reply(client, |conn| conn.complete(permit)),
            Err(error) => {
                if !matches!(error, VolumeError::OutOfRange { .. } | VolumeError::ReadOnly) {
                    let name = self.queue.volume().name();
                    log::limited!(Error, "{name}: {} failed: {error}", kind.name());
                }
                self.reply(client, |conn| conn.fail(permit, &error));
            }
        }
    }

    /// Queues a reply, unless the client has gone.
    pub(super) fn reply(&mut self, key: DefaultKey, reply: impl FnOnce(&mut Connection)) {
        if let Some(client) = self.clients.get_mut(key) {
            reply(&mut client.conn);
            client.list(key, &mut self.dirty);
        }
    }
}

/// Tag of the final flush. A key never has this value.
pub(super) const FLUSH_TAG: u64 = u64::MAX;
/// Extents in one reply.
const MAX_EXTENTS: usize = 16;
