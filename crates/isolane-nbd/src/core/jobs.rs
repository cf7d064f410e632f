//! Requests at the volume: memory, start, and replies.
//!
//! Each connection has memory of its own, which is enough for small requests, so that connections that hold much memory
//! for a long time do not stop others.
//!
//! Invariant: requests get shared memory in the order of their arrival, so that a large one is not starved by small
//! ones.

use isolane_memory::pages_for;
use isolane_volume::{BlockRange, Extent, Outcome, Request, Shutdown, VolumeError};
use slotmap::{DefaultKey, Key, KeyData};
use smallvec::{SmallVec, smallvec};

use super::Core;
use super::clients::Client;
use crate::{Command, Connection, Permit};

/// A request at the volume.
pub(super) struct Job {
    pub client: DefaultKey,
    permit: Permit,
    kind: Kind,
}

impl Job {
    /// Returns the size of its data.
    pub fn bytes(&self) -> usize {
        self.permit.data_bytes()
    }
}

/// Requests at the volume of a closed connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Orphans {
    pub jobs: usize,
    /// Size of their data.
    pub bytes: usize,
}

/// A request for the allocation of blocks.
pub(super) struct Status {
    pub client: DefaultKey,
    permit: Permit,
    lba: u64,
    blocks: u64,
    one: bool,
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
                return self.statuses.push_back(Status { client, permit, lba, blocks, one });
            }
            Command::Nothing => return self.reply(client, |conn| conn.complete(permit)),
        };
        let job = Job { client, permit, kind };
        if kind == Kind::Read {
            let len = job.bytes();
            self.add_waiting_bytes(client, len);
            if !self.has_memory_now(client, len) {
                return self.waiting.push_back(Waiting::Read { job, request, len });
            }
            self.remove_waiting_bytes(client, len);
        }
        self.submit(job, request);
    }

    pub(super) fn submit(&mut self, job: Job, request: Request) {
        let tag = self.jobs.insert(job).data().as_ffi();
        self.queue.start(tag, request, &mut self.reactor, &mut self.pool);
    }

    fn add_waiting_bytes(&mut self, client: DefaultKey, len: usize) {
        if let Some(client) = self.clients.get_mut(client) {
            client.waiting_bytes += len;
        }
    }

    fn remove_waiting_bytes(&mut self, client: DefaultKey, len: usize) {
        if let Some(client) = self.clients.get_mut(client) {
            client.waiting_bytes -= len;
        }
    }

    /// Replies to some requests for the allocation: a volume can take milliseconds for each.
    pub(super) fn report_statuses(&mut self) {
        for _ in 0..self.statuses.len().min(STATUSES_PER_TURN) {
            let Some(Status { client, permit, lba, blocks, one }) = self.statuses.pop_front() else { return };
            let extents = self.extents(lba, blocks, one);
            self.reply(client, |conn| conn.complete_status(permit, &extents));
        }
    }

    /// Returns the first extents of blocks, of at most [`MAX_STATUS_BYTES`].
    fn extents(&self, mut lba: u64, blocks: u64, one: bool) -> SmallVec<[Extent; MAX_EXTENTS]> {
        let mut extents: SmallVec<[Extent; MAX_EXTENTS]> = SmallVec::new();
        let count = if one { 1 } else { MAX_EXTENTS };
        let mut blocks = blocks.min(MAX_STATUS_BYTES / u64::from(self.export.info.block_size));
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

    /// Whether a request of a client can have memory before those that wait for shared memory, or there are none.
    pub(super) fn has_memory_now(&mut self, client: DefaultKey, len: usize) -> bool {
        self.has_own_memory(client, len) || self.waiting.is_empty() && self.has_shared_memory(client, len)
    }

    fn has_own_memory(&mut self, client: DefaultKey, len: usize) -> bool {
        let granted = self.clients.get(client).map_or(0, Client::granted_bytes);
        granted + len <= OWN_BYTES && pages_for(len) <= self.pool.free_pages()
    }

    fn has_shared_memory(&mut self, client: DefaultKey, len: usize) -> bool {
        let shared = |key: DefaultKey, bytes: usize| {
            let more = if key == client { len } else { 0 };
            (bytes + more).saturating_sub(OWN_BYTES)
        };
        let clients = self.clients.iter().map(|(key, client)| shared(key, client.granted_bytes()));
        let orphans = self.orphans.values().map(|orphans| orphans.bytes.saturating_sub(OWN_BYTES));
        let used: usize = clients.chain(orphans).sum();
        used <= SHARED_BYTES && pages_for(len) <= self.pool.free_pages()
    }

    /// Whether the first waiting request can have memory, or its client has gone.
    pub(super) fn can_grant(&mut self) -> bool {
        let (client, len) = match self.waiting.front() {
            None => return false,
            Some(Waiting::Read { job, len, .. }) => (job.client, *len),
            Some(Waiting::Write(key)) => match self.clients.get(*key).and_then(|client| client.awaited) {
                Some(len) => (*key, len),
                None => return true,
            },
        };
        self.has_shared_memory(client, len)
    }

    /// Starts requests that wait for memory, in order.
    pub(super) fn grant_memory(&mut self) {
        while self.can_grant() {
            match self.waiting.pop_front() {
                Some(Waiting::Read { job, request, len }) => {
                    self.remove_waiting_bytes(job.client, len);
                    self.submit(job, request);
                }
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
            client.waiting_bytes -= len;
            let Some(buffer) = self.pool.buffer(len) else { unreachable!("the pool has free pages") };
            client.conn.receive_into(buffer);
        }
    }

    /// Replies to the requests that the volume has completed.
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

    fn complete(&mut self, Job { client, permit, kind }: Job, outcome: Outcome) {
        let is_orphan = self.remove_orphan(client, permit.data_bytes());
        match outcome {
            Ok(data) if is_orphan => self.pool.recycle_payload(data),
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

    /// Returns `true` if the client of a completed request has gone.
    fn remove_orphan(&mut self, client: DefaultKey, bytes: usize) -> bool {
        let Some(orphans) = self.orphans.get_mut(&client) else { return false };
        *orphans = Orphans { jobs: orphans.jobs - 1, bytes: orphans.bytes - bytes };
        if orphans.jobs == 0 {
            self.orphans.remove(&client);
        }
        true
    }

    /// Queues a reply, unless the client has gone.
    pub(super) fn reply(&mut self, key: DefaultKey, reply: impl FnOnce(&mut Connection)) {
        if let Some(client) = self.clients.get_mut(key) {
            reply(&mut client.conn);
            client.list(key, &mut self.dirty);
        }
    }
}

/// Extents in one reply.
const MAX_EXTENTS: usize = 16;
/// Bytes of one reply with extents: some volumes look at each page.
const MAX_STATUS_BYTES: u64 = 256 << 20;
/// Requests for extents that one turn handles.
const STATUSES_PER_TURN: usize = 4;
/// Data of a connection that never waits for other connections, in bytes.
pub(super) const OWN_BYTES: usize = 1 << 20;
/// Data of all connections beyond their own, in bytes.
pub(super) const SHARED_BYTES: usize = 128 << 20;
