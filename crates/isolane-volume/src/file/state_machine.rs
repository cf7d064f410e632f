//! State machine of a file volume: the next operation of each request and the meaning of its
//! result.
//!
//! Makes no system calls, so it runs on real files and on simulated disks. At most one operation
//! per request is in flight. Invariants: see [`file`](super).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use isolane_memory::{Buffer, Pool};
use isolane_reactor::file::{FileOp, FileOpKind};

use super::features::Features;
use super::health::{self, Health, Overlap, Promise, Unrecorded};
use super::range_lock::{Access, Announcement, LONG_BYTES, RangeLock, RangeLocks};
use super::zeroing::{Purpose, ZeroStep, Zeroing};
use crate::request::task::{SyncPermit, Task, TaskState, WriteTask};
use crate::{BlockRange, Request, Step, Volume, VolumeDescription, VolumeError, VolumeInfo};

/// The state machine of a file volume.
#[derive(Debug)]
pub struct FileStateMachine {
    description: VolumeDescription,
    /// The present number of blocks.
    blocks: AtomicU64,
    features: Features,
    /// Direct I/O: addresses, offsets, and lengths are multiples of the block size.
    direct: bool,
    locks: Arc<RangeLocks>,
    health: Arc<Health>,
    syncing: Arc<AtomicBool>,
}

impl FileStateMachine {
    /// Creates the state machine of a file. Without a volatile cache, every write is
    /// durable on completion.
    pub fn new(description: VolumeDescription, features: Features, direct: bool) -> FileStateMachine {
        let (locks, syncing) = (RangeLocks::new(), Arc::default());
        let blocks = AtomicU64::new(description.info.blocks);
        FileStateMachine { description, blocks, features, direct, locks, health: Arc::default(), syncing }
    }

    /// Sets the number of blocks.
    pub fn set_blocks(&self, blocks: u64) {
        self.blocks.store(blocks, Ordering::Release);
    }

    /// Returns size and features.
    fn present_info(&self) -> VolumeInfo {
        VolumeInfo { blocks: self.blocks(), ..self.description.info.clone() }
    }

    /// Checks the size of the file. If it is smaller than the volume, all later requests fail.
    pub fn check_size(&self, size: io::Result<u64>) -> Result<(), VolumeError> {
        match size {
            Ok(size) if size < self.present_info().bytes() => {
                Err(self.health.record_shrunk(&self.description.name))
            }
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
        let Some(_lock) = self.locks.try_lock(offset, len, Access::Read) else {
            return Step::Retry(Request::Read { lba, blocks });
        };
        match pool.buffer(len as usize) {
            None => Step::Retry(Request::Read { lba, blocks }),
            Some(buffer) => {
                Step::File(FileOp::read(offset, buffer, 0, len as usize), Task(TaskState::Read { _lock }))
            }
        }
    }

    fn start_write(&self, lba: u64, blocks: u64, data: Buffer, fua: bool, pool: &mut Pool) -> Step {
        let (offset, len) = self.offset(lba, blocks);
        if len == 0 {
            return Step::done();
        }
        let Some(lock) = self.locks.try_lock(offset, len, Access::Write) else {
            return Step::Retry(Request::Write { lba, blocks, data, fua });
        };
        let data = match self.align(data, pool) {
            Ok(data) => data,
            Err(data) => return Step::Retry(Request::Write { lba, blocks, data, fua }),
        };
        let durable = self.is_durable(fua);
        let synced_by_write = durable && self.direct;
        let operation = FileOp::write(offset, data, 0, len as usize, synced_by_write);
        let unrecorded = synced_by_write.then(|| Unrecorded::new(&self.health, Promise::DurableWrite));
        Step::File(operation, Task(TaskState::Write(WriteTask { lock, durable, unrecorded, repeats: None })))
    }

    /// Copies data that is not aligned for direct I/O. Returns the data if out of memory.
    fn align(&self, data: Buffer, pool: &mut Pool) -> Result<Buffer, Buffer> {
        if !self.direct || data.is_aligned(self.description.info.block_size as usize) {
            return Ok(data);
        }
        let Some(mut copy) = pool.buffer(data.len()) else {
            return Err(data);
        };
        let mut offset = 0;
        data.for_each_slice(0, data.len(), |slice| {
            copy.copy_in(offset, slice);
            offset += slice.len();
        });
        Ok(copy)
    }

    fn resume_read(&self, is_short: bool, mut operation: FileOp, pool: &mut Pool) -> Step {
        if let Err(error) = self.health.check_read(self.direct) {
            return fail(error, operation, pool);
        }
        if is_short {
            return fail(self.health.record_shrunk(&self.description.name), operation, pool);
        }
        let data = operation.buffer.take();
        Step::Done(Ok(data.map(Buffer::into_payload).unwrap_or_default()))
    }

    fn resume_write(&self, write: WriteTask, is_short: bool, operation: FileOp, pool: &mut Pool) -> Step {
        let WriteTask { lock, durable, unrecorded, repeats } = write;
        let error = match (repeats, is_short) {
            (None, false) => {
                drop(lock);
                recycle(operation, pool);
                return match (durable, unrecorded) {
                    (false, _) => Step::done(),
                    // RWF_DSYNC has already synced the data of a direct write.
                    (true, Some(unrecorded)) => self.confirm_sync(unrecorded.record()),
                    (true, None) => self.sync(),
                };
            }
            (None, true) => {
                let done = operation.buffer_offset as u64;
                VolumeError::ShortWrite { done, len: done + operation.len }
            }
            (Some(raw_os_error), false) => {
                self.health.record_sync_failure(&self.description.name, raw_os_error)
            }
            (Some(raw_os_error), true) => health::write_error(raw_os_error),
        };
        unrecorded.map(Unrecorded::record);
        fail(error, operation, pool)
    }

    /// Runs the next step of a zeroing request.
    fn zero(&self, mut zeroing: Zeroing, pool: &mut Pool) -> Step {
        let Some(step) = zeroing.next(&self.features) else {
            return if zeroing.durable { self.sync() } else { Step::done() };
        };
        if step.len >= LONG_BYTES {
            return match self.locks.announce(step.offset, step.len) {
                Some(announcement) => self.zero_announced(zeroing, announcement, pool),
                None => Step::Retry(remaining_request(&zeroing)),
            };
        }
        match self.locks.try_lock(step.offset, step.len, Access::Write) {
            Some(lock) => self.run_zero_step(zeroing, step, lock, pool),
            None => Step::Retry(remaining_request(&zeroing)),
        }
    }

    /// Runs the next step, whose range is announced.
    fn zero_announced(&self, mut zeroing: Zeroing, announcement: Announcement, pool: &mut Pool) -> Step {
        // A step that turned out to be unsupported is split or skipped.
        let next = zeroing.next(&self.features);
        let next = next.filter(|step| step.len >= LONG_BYTES && announcement.covers(step.offset, step.len));
        match (announcement.into_lock(), next) {
            (Ok(lock), Some(step)) => self.run_zero_step(zeroing, step, lock, pool),
            (Ok(lock), None) => {
                drop(lock);
                self.zero(zeroing, pool)
            }
            (Err(announcement), _) => {
                Step::Retry(Request::Continue(Task(TaskState::Announced { zeroing, announcement })))
            }
        }
    }

    fn run_zero_step(&self, zeroing: Zeroing, step: ZeroStep, lock: RangeLock, pool: &mut Pool) -> Step {
        let operation = match step.kind {
            FileOpKind::Write { .. } => match zeroes(step.len as usize, pool) {
                Some(zeroes) => FileOp::write(step.offset, zeroes, 0, step.len as usize, false),
                None => return Step::Retry(remaining_request(&zeroing)),
            },
            kind => FileOp::range(kind, step.offset, step.len),
        };
        Step::File(operation, Task(TaskState::Zero { zeroing, lock }))
    }

    fn resume_zero(&self, mut zeroing: Zeroing, done: usize, operation: FileOp, pool: &mut Pool) -> Step {
        if matches!(operation.kind, FileOpKind::Write { .. }) {
            let whole = done - done % self.description.info.block_size as usize;
            if whole == 0 {
                let error = VolumeError::ShortWrite { done: 0, len: operation.len };
                return fail(error, operation, pool);
            }
            zeroing.advance(whole as u64);
        } else {
            zeroing.advance(operation.len);
            zeroing.record_duration(operation.len, operation.duration);
        }
        recycle(operation, pool);
        self.zero(zeroing, pool)
    }

    /// Syncs all completed writes of all cores.
    fn sync(&self) -> Step {
        if let Err(error) = self.health.check() {
            return Step::failed(error);
        }
        if self.description.info.read_only {
            return Step::done();
        }
        // Only one of two overlapping syncs gets an error: on direct files each waits for the
        // other's result; on buffered files they do not overlap.
        let turn = if self.direct { None } else { SyncPermit::take(&self.syncing) };
        if turn.is_none() && !self.direct {
            return Step::Retry(Request::Flush);
        }
        let unrecorded = Unrecorded::new(&self.health, Promise::Sync);
        Step::File(FileOp::sync(), Task(TaskState::Sync { unrecorded, turn }))
    }

    /// Completes a successful sync or durable write. An overlapping operation of another core may
    /// have failed first and taken the error meant for this one, and that core may not have
    /// recorded it yet.
    fn confirm_sync(&self, overlap: Overlap) -> Step {
        if !self.health.has_passed(&overlap) {
            return Step::Retry(Request::Continue(Task(TaskState::Promise { overlap })));
        }
        self.health.check().map_or_else(Step::failed, |()| Step::done())
    }

    /// Continues a request that had to wait.
    fn proceed(&self, task: Task, pool: &mut Pool) -> Step {
        match task.0 {
            TaskState::Announced { zeroing, announcement } => {
                self.zero_announced(zeroing, announcement, pool)
            }
            TaskState::Promise { overlap } => self.confirm_sync(overlap),
            state => unreachable!("{state:?} waits for its operation"),
        }
    }

    /// Handles a failed operation.
    fn refuse(&self, state: TaskState, raw_os_error: i32, mut operation: FileOp, pool: &mut Pool) -> Step {
        if health::is_interrupted(raw_os_error) {
            return Step::File(operation, Task(state));
        }
        let sync_failure = || self.health.record_sync_failure(&self.description.name, raw_os_error);
        let can_be_unsupported = matches!(state, TaskState::Zero { .. }) && operation.buffer.is_none();
        let is_unsupported = can_be_unsupported && health::is_unsupported(raw_os_error);
        let gone = (health::is_gone(raw_os_error) && !is_unsupported)
            .then(|| self.health.record_gone(&self.description.name, raw_os_error));
        let error = match state {
            TaskState::Zero { zeroing, lock } if is_unsupported => {
                drop(lock);
                self.features.disable(operation.kind);
                log::info!(
                    "{}: {:?} is not supported, using another method",
                    self.description.name,
                    operation.kind
                );
                return self.zero(zeroing, pool);
            }
            TaskState::Read { .. } => VolumeError::ReadFailed { raw_os_error },
            TaskState::Sync { unrecorded, turn } => {
                let error = sync_failure();
                unrecorded.record();
                drop(turn);
                error
            }
            TaskState::Write(write @ WriteTask { unrecorded: Some(_), repeats: None, .. })
                if health::is_out_of_space(raw_os_error) =>
            {
                operation.kind = FileOpKind::Write { durable: false };
                let write = WriteTask { repeats: Some(raw_os_error), ..write };
                return Step::File(operation, Task(TaskState::Write(write)));
            }
            TaskState::Write(WriteTask { unrecorded, .. }) => {
                // A write without durability, or one that failed twice with ENOSPC, loses only its
                // own data. Any other durable write may have failed in its sync.
                let loses_own_data_only = unrecorded.is_none() || health::is_out_of_space(raw_os_error);
                let error =
                    if loses_own_data_only { health::write_error(raw_os_error) } else { sync_failure() };
                unrecorded.map(Unrecorded::record);
                error
            }
            TaskState::Zero { .. } => health::write_error(raw_os_error),
            state => unreachable!("{state:?} has no operation of the state machine"),
        };
        fail(gone.unwrap_or(error), operation, pool)
    }

    fn is_durable(&self, fua: bool) -> bool {
        fua || !self.description.info.volatile_cache
    }

    /// Returns the usable part of a short transfer: direct I/O continues at whole blocks only.
    fn usable_len(&self, done: usize) -> usize {
        if self.direct { done - done % self.description.info.block_size as usize } else { done }
    }

    /// Returns offset and length in bytes of existing blocks.
    fn offset(&self, lba: u64, blocks: u64) -> (u64, u64) {
        let block_size = u64::from(self.description.info.block_size);
        (lba * block_size, blocks * block_size)
    }
}

impl Volume for FileStateMachine {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    fn failure(&self) -> Option<VolumeError> {
        self.health.check().err()
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        let is_read = matches!(request, Request::Read { .. });
        let check_health = || if is_read { self.health.check_read(self.direct) } else { self.health.check() };
        if let Err(error) = request.check(&self.present_info()).and_then(|()| check_health()) {
            return request.fail(error, pool);
        }
        let block_size = self.description.info.block_size;
        match request {
            Request::Read { lba, blocks } => self.start_read(lba, blocks, pool),
            Request::Write { lba, blocks, data, fua } => self.start_write(lba, blocks, data, fua, pool),
            Request::Flush => self.sync(),
            Request::WriteZeroes { lba, blocks, fua, deallocate } => {
                let range = BlockRange { lba, blocks };
                self.zero(Zeroing::write_zeroes(range, block_size, deallocate, self.is_durable(fua)), pool)
            }
            Request::Deallocate { ranges, fua } => {
                let zeroed = self.description.info.zeroes_after_deallocate;
                self.zero(Zeroing::deallocate(&ranges, block_size, zeroed, self.is_durable(fua)), pool)
            }
            Request::Continue(task) => self.proceed(task, pool),
        }
    }

    fn resume(&self, task: Task, result: io::Result<usize>, operation: FileOp, pool: &mut Pool) -> Step {
        let done = match result {
            Ok(done) => done,
            Err(error) => {
                let raw_os_error = error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
                return self.refuse(task.0, raw_os_error, operation, pool);
            }
        };
        let is_short = done as u64 != operation.len;
        match task.0 {
            TaskState::Read { .. } | TaskState::Write(_) if is_short && self.usable_len(done) > 0 => {
                Step::File(advance(operation, self.usable_len(done)), task)
            }
            // A short read means end of file if the next one is empty.
            TaskState::Read { .. } => self.resume_read(is_short, operation, pool),
            TaskState::Write(write) => self.resume_write(write, is_short, operation, pool),
            TaskState::Zero { zeroing, lock } => {
                drop(lock);
                self.resume_zero(zeroing, done, operation, pool)
            }
            TaskState::Sync { unrecorded, turn } => {
                let step = self.confirm_sync(unrecorded.record());
                drop(turn);
                step
            }
            state => unreachable!("{state:?} has no operation of the state machine"),
        }
    }
}

/// Returns the remainder of an operation after `done` bytes.
fn advance(mut operation: FileOp, done: usize) -> FileOp {
    operation.offset += done as u64;
    operation.buffer_offset += done;
    operation.len -= done as u64;
    operation
}

fn fail(error: VolumeError, operation: FileOp, pool: &mut Pool) -> Step {
    recycle(operation, pool);
    Step::failed(error)
}

fn recycle(operation: FileOp, pool: &mut Pool) {
    if let Some(buffer) = operation.buffer {
        pool.recycle_buffer(buffer);
    }
}

/// Returns the remainder of a zeroing request as a new request.
fn remaining_request(zeroing: &Zeroing) -> Request {
    let mut ranges = zeroing.remaining_ranges();
    let fua = zeroing.durable;
    match (zeroing.purpose, ranges.next()) {
        (_, None) => Request::Flush,
        (Purpose::Free { .. }, Some(first)) => {
            Request::Deallocate { ranges: std::iter::once(first).chain(ranges).collect(), fua }
        }
        (purpose, Some(BlockRange { lba, blocks })) => {
            Request::WriteZeroes { lba, blocks, fua, deallocate: purpose == Purpose::ZeroAndFree }
        }
    }
}

fn zeroes(len: usize, pool: &mut Pool) -> Option<Buffer> {
    let mut buffer = pool.buffer(len)?;
    buffer.slices_mut(0, len).for_each(|slice| slice.fill(0));
    Some(buffer)
}

#[cfg(test)]
mod tests;
