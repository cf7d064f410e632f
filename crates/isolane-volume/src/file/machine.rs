//! A file volume without its file: which operation comes next for a request, and what its result means.
//!
//! It makes no system call, so it runs on real files and on simulated disks alike. One operation at a time is
//! in flight for a request. Invariants: see [`file`](super).

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use isolane_memory::{Buffer, Pool};
use isolane_reactor::file::{Kind, Operation};

use super::abilities::Abilities;
use super::claims::{Access, Announcement, Claim, Claims, LONG_BYTES};
use super::health::{self, Health, Overlap, Promise, Unrecorded};
use super::task::{SyncTurn, Task, Work};
use super::zeroing::{Method, Piece, Zeroing};
use crate::{BlockRange, Geometry, Identity, Request, Step, Volume, VolumeError};

/// The state machine of a file volume.
#[derive(Debug)]
pub struct FileMachine {
    name: String,
    geometry: Geometry,
    identity: Identity,
    abilities: Abilities,
    /// Direct I/O: addresses, offsets and lengths are multiples of the block size.
    is_direct: bool,
    claims: Arc<Claims>,
    health: Arc<Health>,
    is_syncing: Arc<AtomicBool>,
}

impl FileMachine {
    /// A machine for a file. Without a volatile cache in its geometry, every write is durable when it
    /// completes.
    pub fn new(
        name: String,
        geometry: Geometry,
        identity: Identity,
        abilities: Abilities,
        is_direct: bool,
    ) -> FileMachine {
        let (claims, is_syncing) = (Claims::new(), Arc::default());
        FileMachine {
            name,
            geometry,
            identity,
            abilities,
            is_direct,
            claims,
            health: Arc::default(),
            is_syncing,
        }
    }

    /// What the size of the file means: if it ends before the volume does, nothing is read or written any more.
    pub fn judge_size(&self, size: io::Result<u64>) -> Result<(), VolumeError> {
        match size {
            Ok(size) if size < self.geometry.bytes() => Err(self.health.note_shrunk(&self.name)),
            Ok(_) => Ok(()),
            Err(error) => Err(VolumeError::SizeUnknown {
                raw_os_error: error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error()),
            }),
        }
    }

    fn start_read(&self, lba: u64, blocks: u64, pool: &mut Pool) -> Step {
        let (offset, len) = self.offset(lba, blocks);
        if len == 0 {
            return Step::done();
        }
        let Some(_claim) = self.claims.claim(offset, len, Access::Read) else {
            return Step::Later(Request::Read { lba, blocks });
        };
        match pool.buffer(len as usize) {
            None => Step::Later(Request::Read { lba, blocks }),
            Some(buffer) => {
                Step::File(Operation::read(offset, buffer, 0, len as usize), Task(Work::Read { _claim }))
            }
        }
    }

    fn start_write(&self, lba: u64, blocks: u64, data: Buffer, fua: bool, pool: &mut Pool) -> Step {
        let (offset, len) = self.offset(lba, blocks);
        if len == 0 {
            return Step::done();
        }
        let Some(claim) = self.claims.claim(offset, len, Access::Write) else {
            return Step::Later(Request::Write { lba, blocks, data, fua });
        };
        let data = match self.align(data, pool) {
            Ok(data) => data,
            Err(data) => return Step::Later(Request::Write { lba, blocks, data, fua }),
        };
        let is_durable = self.is_durable(fua);
        let is_durable_at_once = is_durable && self.is_direct;
        let operation = Operation::write(offset, data, 0, len as usize, is_durable_at_once);
        let unrecorded = is_durable_at_once.then(|| Unrecorded::new(&self.health, Promise::DurableWrite));
        Step::File(operation, Task(Work::Write { claim, is_durable, unrecorded }))
    }

    /// Data at addresses that direct I/O takes. Handed back when there is no memory to copy it to.
    fn align(&self, data: Buffer, pool: &mut Pool) -> Result<Buffer, Buffer> {
        if !self.is_direct || data.is_aligned(self.geometry.block_size as usize) {
            return Ok(data);
        }
        let Some(mut copy) = pool.buffer(data.len()) else {
            return Err(data);
        };
        let mut offset = 0;
        for slice in data.slices(0, data.len()) {
            copy.place(offset, slice);
            offset += slice.len();
        }
        Ok(copy)
    }

    fn resume_read(&self, work: Work, done: usize, mut operation: Operation, pool: &mut Pool) -> Step {
        if let Err(error) = self.health.check_read() {
            return give_up(error, operation, pool);
        }
        if done as u64 == operation.len {
            let data = operation.buffer.take();
            return Step::Done(Ok(data.map(Buffer::into_payload).unwrap_or_default()));
        }
        // A short read is an end of file, unless more follows.
        match self.usable(done) {
            0 => {
                let error = self.health.note_shrunk(&self.name);
                give_up(error, operation, pool)
            }
            done => Step::File(advance(operation, done), Task(work)),
        }
    }

    fn resume_write(
        &self,
        (claim, is_durable, unrecorded): (Claim, bool, Option<Unrecorded>),
        done: usize,
        operation: Operation,
        pool: &mut Pool,
    ) -> Step {
        if done as u64 != operation.len {
            return match self.usable(done) {
                0 => {
                    unrecorded.map(Unrecorded::record);
                    let len = operation.len + operation.buffer_offset as u64;
                    let error = VolumeError::ShortWrite { done: operation.buffer_offset as u64, len };
                    give_up(error, operation, pool)
                }
                done => {
                    let work = Work::Write { claim, is_durable, unrecorded };
                    Step::File(advance(operation, done), Task(work))
                }
            };
        }
        drop(claim);
        recycle(operation, pool);
        match (is_durable, unrecorded) {
            (false, _) => Step::done(),
            // RWF_DSYNC has synced the data of a direct write already.
            (true, Some(unrecorded)) => self.promise(unrecorded.record()),
            (true, None) => self.sync(),
        }
    }

    /// A durable write that had found no space was written without being made durable.
    fn resume_repeated(
        &self,
        (claim, raw_os_error, unrecorded): (Claim, i32, Option<Unrecorded>),
        done: usize,
        operation: Operation,
        pool: &mut Pool,
    ) -> Step {
        let error = match self.usable(done) {
            _ if done as u64 == operation.len => self.health.note_sync_failure(&self.name, raw_os_error),
            0 => health::write_error(raw_os_error),
            done => {
                let work = Work::Repeat { _claim: claim, raw_os_error, unrecorded };
                return Step::File(advance(operation, done), Task(work));
            }
        };
        unrecorded.map(Unrecorded::record);
        give_up(error, operation, pool)
    }

    /// Does the next piece of a zeroing request.
    fn zero(&self, mut zeroing: Zeroing, pool: &mut Pool) -> Step {
        while let Some(piece) = zeroing.next(&self.abilities) {
            if piece.method == Method::Skip {
                zeroing.advance(piece.len);
                continue;
            }
            if piece.len >= LONG_BYTES {
                return match self.claims.announce(piece.offset, piece.len) {
                    Some(announcement) => self.zero_announced(zeroing, announcement, pool),
                    None => Step::Later(zeroing.into_request()),
                };
            }
            return match self.claims.claim(piece.offset, piece.len, Access::Write) {
                Some(claim) => self.zero_piece(zeroing, piece, claim, pool),
                None => Step::Later(zeroing.into_request()),
            };
        }
        if zeroing.is_durable { self.sync() } else { Step::done() }
    }

    /// Does the next piece, whose range is announced.
    fn zero_announced(&self, zeroing: Zeroing, announcement: Announcement, pool: &mut Pool) -> Step {
        let announced = announcement.bytes();
        match (announcement.into_claim(), zeroing.next(&self.abilities)) {
            // What turned out to be impossible meanwhile is done in shorter steps, or skipped.
            (Ok(claim), Some(piece)) if (LONG_BYTES..=announced).contains(&piece.len) => {
                self.zero_piece(zeroing, piece, claim, pool)
            }
            (Ok(claim), _) => {
                drop(claim);
                self.zero(zeroing, pool)
            }
            (Err(announcement), _) => {
                Step::Later(Request::Rest(Task(Work::Announced { zeroing, announcement })))
            }
        }
    }

    fn zero_piece(&self, zeroing: Zeroing, piece: Piece, claim: Claim, pool: &mut Pool) -> Step {
        let operation = match piece.method {
            Method::Range(kind) => Operation::range(kind, piece.offset, piece.len),
            Method::Skip => {
                drop(claim);
                return self.zero(zeroing, pool);
            }
            Method::Write => match zeroes(piece.len as usize, pool) {
                Some(zeroes) => Operation::write(piece.offset, zeroes, 0, piece.len as usize, false),
                None => return Step::Later(zeroing.into_request()),
            },
        };
        Step::File(operation, Task(Work::Zero { zeroing, claim }))
    }

    fn resume_zero(&self, mut zeroing: Zeroing, done: usize, operation: Operation, pool: &mut Pool) -> Step {
        if matches!(operation.kind, Kind::Write { .. }) {
            let whole = done - done % self.geometry.block_size as usize;
            if whole == 0 {
                let error = VolumeError::ShortWrite { done: 0, len: operation.len };
                return give_up(error, operation, pool);
            }
            zeroing.advance(whole as u64);
        } else {
            zeroing.advance(operation.len);
        }
        recycle(operation, pool);
        self.zero(zeroing, pool)
    }

    /// Makes durable what completed before, on all cores.
    fn sync(&self) -> Step {
        if let Err(error) = self.health.check() {
            return Step::failed(error);
        }
        if self.geometry.read_only {
            return Step::done();
        }
        // Of two that overlap, an error is reported to only one: on direct files each waits for the other's
        // result, on buffered ones they do not overlap.
        let turn = if self.is_direct { None } else { SyncTurn::take(&self.is_syncing) };
        if turn.is_none() && !self.is_direct {
            return Step::Later(Request::Flush);
        }
        let unrecorded = Unrecorded::new(&self.health, Promise::Sync);
        Step::File(Operation::sync(), Task(Work::Sync { unrecorded, turn }))
    }

    /// An operation that makes data durable has succeeded. But another core's may have failed before, and taken
    /// the error that was meant for this one, and its core may not have noted that yet.
    fn promise(&self, overlap: Overlap) -> Step {
        if !self.health.has_passed(&overlap) {
            return Step::Later(Request::Rest(Task(Work::Promise { overlap })));
        }
        self.health.check().map_or_else(Step::failed, |()| Step::done())
    }

    /// Goes on with a request that had to wait.
    fn go_on(&self, task: Task, pool: &mut Pool) -> Step {
        match task.0 {
            Work::Announced { zeroing, announcement } => self.zero_announced(zeroing, announcement, pool),
            Work::Promise { overlap } => self.promise(overlap),
            work => unreachable!("{work:?} waits for its operation"),
        }
    }

    /// What an error of the kernel means for a request.
    fn refuse(&self, work: Work, raw_os_error: i32, mut operation: Operation, pool: &mut Pool) -> Step {
        if health::is_interrupted(raw_os_error) {
            return Step::File(operation, Task(work));
        }
        let sync_failure = || self.health.note_sync_failure(&self.name, raw_os_error);
        let error = match work {
            Work::Zero { zeroing, claim }
                if health::is_unsupported(raw_os_error) && operation.buffer.is_none() =>
            {
                drop(claim);
                self.abilities.strike(operation.kind);
                log::info!("{}: {:?} is not supported; doing without it", self.name, operation.kind);
                return self.zero(zeroing, pool);
            }
            Work::Read { .. } => health::read_error(raw_os_error),
            Work::Sync { unrecorded, turn } => {
                let error = sync_failure();
                unrecorded.record();
                drop(turn);
                error
            }
            Work::Write { claim, unrecorded: Some(unrecorded), .. }
                if health::is_out_of_space(raw_os_error) =>
            {
                operation.kind = Kind::Write { durable: false };
                let unrecorded = Some(unrecorded);
                return Step::File(operation, Task(Work::Repeat { _claim: claim, raw_os_error, unrecorded }));
            }
            Work::Write { unrecorded, .. } | Work::Repeat { unrecorded, .. } => {
                // A write without a promise, or one that found no space in vain, loses only its own data. Of
                // any other durable write nobody knows which half failed.
                let is_harmless = unrecorded.is_none() || health::is_out_of_space(raw_os_error);
                let error = if is_harmless { health::write_error(raw_os_error) } else { sync_failure() };
                unrecorded.map(Unrecorded::record);
                error
            }
            Work::Zero { .. } => health::write_error(raw_os_error),
            Work::Announced { .. } | Work::Promise { .. } | Work::Check { .. } => {
                unreachable!("it has no operation of the machine")
            }
        };
        give_up(error, operation, pool)
    }

    fn is_durable(&self, fua: bool) -> bool {
        fua || !self.geometry.volatile_cache
    }

    /// How much of a short transfer counts: direct I/O goes on at whole blocks only.
    fn usable(&self, done: usize) -> usize {
        if self.is_direct { done - done % self.geometry.block_size as usize } else { done }
    }

    /// Offset and length in bytes of blocks that exist.
    fn offset(&self, lba: u64, blocks: u64) -> (u64, u64) {
        let block_size = u64::from(self.geometry.block_size);
        (lba * block_size, blocks * block_size)
    }
}

impl Volume for FileMachine {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        let is_read = matches!(request, Request::Read { .. });
        let check_health = || if is_read { self.health.check_read() } else { self.health.check() };
        if let Err(error) = self.geometry.check(&request).and_then(|()| check_health()) {
            if let Request::Write { data, .. } = request {
                pool.recycle_buffer(data);
            }
            return Step::failed(error);
        }
        let block_size = self.geometry.block_size;
        match request {
            Request::Read { lba, blocks } => self.start_read(lba, blocks, pool),
            Request::Write { lba, blocks, data, fua } => self.start_write(lba, blocks, data, fua, pool),
            Request::Flush => self.sync(),
            Request::WriteZeroes { lba, blocks, fua, deallocate } => {
                let range = BlockRange { lba, blocks };
                self.zero(Zeroing::write_zeroes(range, block_size, deallocate, self.is_durable(fua)), pool)
            }
            Request::Deallocate { ranges, fua } => {
                let is_zeroed = self.geometry.zeroes_after_deallocate;
                self.zero(Zeroing::deallocate(&ranges, block_size, is_zeroed, self.is_durable(fua)), pool)
            }
            Request::Rest(task) => self.go_on(task, pool),
        }
    }

    fn resume(&self, task: Task, result: io::Result<usize>, operation: Operation, pool: &mut Pool) -> Step {
        let done = match result {
            Ok(done) => done,
            Err(error) => {
                let raw_os_error = error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
                return self.refuse(task.0, raw_os_error, operation, pool);
            }
        };
        match task.0 {
            work @ Work::Read { .. } => self.resume_read(work, done, operation, pool),
            Work::Write { claim, is_durable, unrecorded } => {
                self.resume_write((claim, is_durable, unrecorded), done, operation, pool)
            }
            Work::Repeat { _claim, raw_os_error, unrecorded } => {
                self.resume_repeated((_claim, raw_os_error, unrecorded), done, operation, pool)
            }
            Work::Zero { zeroing, claim } => {
                drop(claim);
                self.resume_zero(zeroing, done, operation, pool)
            }
            Work::Sync { unrecorded, turn } => {
                let step = self.promise(unrecorded.record());
                drop(turn);
                step
            }
            Work::Announced { .. } | Work::Promise { .. } | Work::Check { .. } => {
                unreachable!("it has no operation of the machine")
            }
        }
    }
}

/// The rest of an operation whose first bytes are done.
fn advance(mut operation: Operation, done: usize) -> Operation {
    operation.offset += done as u64;
    operation.buffer_offset += done;
    operation.len -= done as u64;
    operation
}

fn give_up(error: VolumeError, operation: Operation, pool: &mut Pool) -> Step {
    recycle(operation, pool);
    Step::failed(error)
}

fn recycle(operation: Operation, pool: &mut Pool) {
    if let Some(buffer) = operation.buffer {
        pool.recycle_buffer(buffer);
    }
}

fn zeroes(len: usize, pool: &mut Pool) -> Option<Buffer> {
    let mut buffer = pool.buffer(len)?;
    buffer.slices_mut(0, len).for_each(|slice| slice.fill(0));
    Some(buffer)
}

#[cfg(test)]
mod tests;
