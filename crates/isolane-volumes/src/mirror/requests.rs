//! Requests to a mirror: runs them on the members and on the bitmap file.
//!
//! Invariants:
//! * A write reaches members only after the bits of its regions are durable.
//! * A change or flush that a live member did not get, or failed, completes only after the record without that member
//!   is durable.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use isolane_memory::{Buffer, Payload};
use isolane_volume::nested::Running;
use isolane_volume::{BlockRange, NestedIo, Outcome, Request, Volume, VolumeError};
use parking_lot::Mutex;

use super::bits::SECTOR_BYTES;
use super::record::{BITMAP, Record};
use super::state::{Commit, MemberResults, NO_ANSWER, State};
use crate::EIO;

/// A mirror in service.
pub(super) struct Mirror {
    pub name: String,
    /// A member that is missing gets no requests.
    pub members: [Option<Arc<dyn Volume>>; 2],
    pub bitmap: Arc<dyn Volume>,
    pub state: Mutex<State>,
    /// Time for a member to answer before the mirror continues without it. `None`: unlimited.
    pub member_timeout: Option<Duration>,
}

impl Mirror {
    /// Runs a checked request.
    pub async fn run(self: Arc<Self>, io: NestedIo, request: Request) -> Outcome {
        let (ranges, fua, deallocate) = match request {
            Request::Read { lba, blocks } => return self.read(&io, BlockRange { lba, blocks }).await,
            Request::Flush => return self.flush(&io).await,
            Request::Write { lba, blocks, data, fua } => {
                let requests = two_buffers(data).map(|data| Request::Write { lba, blocks, data, fua });
                return self.change(&io, BlockRange { lba, blocks }, requests).await;
            }
            Request::WriteZeroes { lba, blocks, fua, deallocate } => {
                ([BlockRange { lba, blocks }].into(), fua, deallocate)
            }
            // Deallocated blocks can read differently on each member; zeroes cannot.
            Request::Deallocate { ranges, fua } => (ranges, fua, true),
            Request::Continue(_) => unreachable!("a mirror never returns the remainder of a request"),
        };
        for BlockRange { lba, blocks } in ranges {
            let zero = || Request::WriteZeroes { lba, blocks, fua, deallocate };
            self.change(&io, BlockRange { lba, blocks }, [zero(), zero()]).await?;
        }
        Ok(Payload::default())
    }

    async fn read(self: &Arc<Self>, io: &NestedIo, span: BlockRange) -> Outcome {
        let _lock = self.lock(io, span, false).await;
        let (first, second) = self.state.lock().readers(span);
        let request = || Request::Read { lba: span.lba, blocks: span.blocks };
        let mut running = self.start(io, first, request())?;
        let Some(second) = second else { return running.await };
        match self.within_timeout(&mut running, first).await {
            Some(Ok(data)) => Ok(data),
            Some(Err(error)) => {
                log::limited!(
                    Warn,
                    "{}: reading member {} failed, reading the other: {error}",
                    self.name,
                    first + 1
                );
                self.start(io, second, request())?.await
            }
            None => self.read_from_either(io, running, second, request()).await,
        }
    }

    /// Reads the second member because the first does not answer. The mirror continues without the first member if it
    /// does not answer in time after the second one has.
    async fn read_from_either(
        &self,
        io: &NestedIo,
        mut running: Running,
        second: usize,
        request: Request,
    ) -> Outcome {
        let mut other = self.start(io, second, request)?;
        let (data, is_first_pending) = first_success(&mut running, &mut other).await?;
        let is_silent = is_first_pending && self.within_timeout(&mut running, 1 - second).await.is_none();
        for running in [running, other] {
            drop(io.abandon(running));
        }
        if is_silent && self.state.lock().can_continue_with(second) {
            let mut results = [Some(Ok(())), Some(Ok(()))];
            results[1 - second] = Some(Err(NO_ANSWER));
            self.settle(io, results, None).await?;
        }
        Ok(data)
    }

    /// Starts a request to a member.
    pub fn start(&self, io: &NestedIo, member: usize, request: Request) -> Result<Running, VolumeError> {
        let volume = self.members[member].as_ref().ok_or(VolumeError::ReadFailed { raw_os_error: EIO })?;
        Ok(io.start(volume, request))
    }

    /// Runs a request on a member. Returns [`NO_ANSWER`] if the member does not answer in time.
    pub async fn answer(&self, io: &NestedIo, member: usize, request: Request) -> Outcome {
        let mut running = self.start(io, member, request)?;
        match self.within_timeout(&mut running, member).await {
            Some(outcome) => outcome,
            None => io.abandon(running).unwrap_or(Err(NO_ANSWER)),
        }
    }

    /// Waits for a request to a member. Returns `None` if the member does not answer in time, or is no longer in use.
    async fn within_timeout(&self, running: &mut Running, member: usize) -> Option<Outcome> {
        let mut wait = Wait::begin(Instant::now());
        poll_fn(|context| match Pin::new(&mut *running).poll(context) {
            Poll::Pending if self.is_silent(member, &mut wait) => Poll::Ready(None),
            polled => polled.map(Some),
        })
        .await
    }

    /// Whether a member without an answer is late, or no longer in use.
    fn is_silent(&self, member: usize, wait: &mut Wait) -> bool {
        self.member_timeout.is_some_and(|timeout| wait.has_reached(timeout, Instant::now()))
            || !self.state.lock().is_live(member)
    }

    /// Sends a change of `span` to all live members.
    async fn change(self: &Arc<Self>, io: &NestedIo, span: BlockRange, requests: [Request; 2]) -> Outcome {
        let _lock = self.lock(io, span, true).await;
        self.state.lock().mark_dirty(span);
        self.commit(io, |state| state.are_durable(span)).await?;
        self.state.lock().check()?;
        let guard = WorkGuard(self, "a change");
        let results = self.run_on_live(io, requests).await;
        guard.end();
        self.settle(io, results, Some(span)).await
    }

    /// Flushes all live members.
    pub async fn flush(&self, io: &NestedIo) -> Outcome {
        self.state.lock().check()?;
        let results = self.run_on_live(io, [Request::Flush, Request::Flush]).await;
        self.settle(io, results, None).await
    }

    /// Runs requests on the live members concurrently. If a member succeeds with which the mirror can continue, the
    /// other member fails unless it answers in time after that: a request can take long on both.
    pub async fn run_on_live(&self, io: &NestedIo, [first, second]: [Request; 2]) -> MemberResults {
        let start = |member: usize, request: Request| {
            let volume = self.members[member].as_ref().filter(|_| self.state.lock().is_live(member))?;
            Some(io.start(volume, request))
        };
        let mut running = [start(0, first), start(1, second)];
        let mut wait = None;
        let mut results: MemberResults = [None, None];
        poll_fn(|context| {
            for (running, result) in running.iter_mut().zip(&mut results) {
                let polled = running.as_mut().map(|running| Pin::new(running).poll(context));
                if let Some(Poll::Ready(outcome)) = polled {
                    (*running, *result) = (None, Some(outcome.map(drop)));
                }
            }
            let Some(member) = running.iter().position(Option::is_some) else { return Poll::Ready(()) };
            let other = 1 - member;
            let is_over = match results[other] {
                Some(Ok(())) if self.state.lock().can_continue_with(other) => {
                    self.is_silent(member, wait.get_or_insert_with(|| Wait::begin(Instant::now())))
                }
                // Another request has continued without the member.
                Some(Err(_)) => !self.state.lock().is_live(member),
                _ => false,
            };
            if is_over {
                running[member].take().map(|running| io.abandon(running));
                results[member] = Some(Err(NO_ANSWER));
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
        results
    }

    /// Decides the outcome of a change of `span`, or of a flush, and makes the record durable if it has changed.
    pub async fn settle(&self, io: &NestedIo, results: MemberResults, span: Option<BlockRange>) -> Outcome {
        let outcome = self.state.lock().settle(&self.name, &results, span);
        self.commit(io, State::is_record_durable).await?;
        outcome
    }

    /// Makes bits and record durable until `is_done`. Concurrent requests share a commit.
    pub async fn commit(&self, io: &NestedIo, is_done: impl Fn(&State) -> bool) -> Result<(), VolumeError> {
        loop {
            let commit = {
                let mut state = self.state.lock();
                if is_done(&state) {
                    return Ok(());
                }
                state.check()?;
                state.begin_commit()
            };
            let Some(commit) = commit else {
                io.retry_later().await;
                continue;
            };
            let guard = WorkGuard(self, "a commit");
            let outcome = self.write_commit(io, &commit).await;
            if let Err(error) = &outcome {
                log::limited!(Error, "{}: bitmap file: {error}; all changes fail until a restart", self.name);
            }
            self.state.lock().end_commit(&self.name, commit, outcome);
            guard.end();
        }
    }

    /// Writes the bits, then the record: to the bitmap file first, so that it is never older than the members.
    async fn write_commit(&self, io: &NestedIo, commit: &Commit) -> Result<MemberResults, VolumeError> {
        let fua = commit.sectors.len() == 1;
        let write_sector = |sector: &u64| write(1 + sector, &commit.bits.encode(*sector), SECTOR_BYTES, fua);
        io.run_all(commit.sectors.iter().map(|sector| (Arc::clone(&self.bitmap), write_sector(sector))))
            .await?;
        if commit.sectors.len() > 1 {
            io.start(&self.bitmap, Request::Flush).await?;
        }
        let Some(record) = &commit.record else { return Ok([None, None]) };
        io.start(&self.bitmap, write_record(record, BITMAP)).await?;
        Ok(self.run_on_live(io, [0, 1].map(|member| write_record(record, member))).await)
    }

    /// Waits until no earlier request excludes this one.
    pub async fn lock(self: &Arc<Self>, io: &NestedIo, span: BlockRange, is_change: bool) -> RequestLock {
        let (id, blockers) = self.state.lock().begin_request(span, is_change);
        let lock = RequestLock { mirror: Arc::clone(self), id };
        while blockers.load(Ordering::Acquire) > 0 {
            io.retry_later().await;
        }
        lock
    }
}

/// Exclusive access to the blocks of a change, or shared access to the blocks of a read.
pub(super) struct RequestLock {
    mirror: Arc<Mirror>,
    id: u64,
}

impl Drop for RequestLock {
    fn drop(&mut self) {
        self.mirror.state.lock().end_request(self.id);
    }
}

/// Makes all changes fail if work is abandoned, as by a core that stops: its writes are unknown, and can come late.
#[must_use = "dropping it makes all changes fail"]
pub(super) struct WorkGuard<'a>(pub &'a Mirror, pub &'static str);

impl WorkGuard<'_> {
    /// Records that the work is complete.
    pub fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for WorkGuard<'_> {
    fn drop(&mut self) {
        let WorkGuard(mirror, work) = self;
        log::error!("{}: {work} was abandoned; all changes fail until a restart", mirror.name);
        mirror.state.lock().error.get_or_insert(VolumeError::WriteFailed { raw_os_error: EIO });
    }
}

/// Time that a member takes to answer.
///
/// Only short intervals between polls count: a longer one is a pause of this process, as by SIGSTOP.
struct Wait {
    last_poll: Instant,
    waited: Duration,
}

impl Wait {
    fn begin(now: Instant) -> Wait {
        Wait { last_poll: now, waited: Duration::ZERO }
    }

    fn has_reached(&mut self, timeout: Duration, now: Instant) -> bool {
        self.waited += (now - self.last_poll).min(MAX_INTERVAL).min(timeout / 2);
        self.last_poll = now;
        self.waited >= timeout
    }
}

/// Longest interval between polls that counts; the executor polls more often.
const MAX_INTERVAL: Duration = Duration::from_millis(500);

/// Waits for the first success of two reads, or for both errors. Returns the data, and
/// whether the first read has not ended.
async fn first_success(first: &mut Running, second: &mut Running) -> Result<(Payload, bool), VolumeError> {
    let mut has_failed = [false; 2];
    poll_fn(|context| {
        for (at, running) in [&mut *first, &mut *second].into_iter().enumerate() {
            match Pin::new(running).poll(context) {
                Poll::Ready(Ok(data)) => return Poll::Ready(Ok((data, at == 1 && !has_failed[0]))),
                Poll::Ready(Err(error)) if has_failed[1 - at] => return Poll::Ready(Err(error)),
                Poll::Ready(Err(_)) => has_failed[at] = true,
                Poll::Pending => {}
            }
        }
        Poll::Pending
    })
    .await
}

/// Returns the write of a record to a member's label, or to the start of the bitmap file, before the sectors of bits.
pub(super) fn write_record(record: &Record, holder: usize) -> Request {
    let (lba, block_size) = match holder {
        BITMAP => (0, SECTOR_BYTES),
        _ => (record.blocks, record.block_size as usize),
    };
    write(lba, &record.encode(holder), block_size, true)
}

/// Returns a write of one block.
fn write(lba: u64, bytes: &[u8], block_size: usize, fua: bool) -> Request {
    Request::Write { lba, blocks: 1, data: buffer(bytes, block_size), fua }
}

/// Returns two buffers with the same data: the same pages, or copies. Both are copies of shared memory, which another
/// process can change between the two writes.
fn two_buffers(data: Buffer) -> [Buffer; 2] {
    let len = data.len();
    match data.into_pages() {
        Ok(pages) => [Buffer::from_pages(pages.clone(), len), Buffer::from_pages(pages, len)],
        Err(data) => {
            let bytes = data.to_vec();
            let second = if data.is_in_shared_memory() { buffer(&bytes, len) } else { data };
            [buffer(&bytes, len), second]
        }
    }
}

/// Returns a buffer of `len` bytes that starts with `bytes`.
pub(super) fn buffer(bytes: &[u8], len: usize) -> Buffer {
    let mut data = Buffer::contiguous(len);
    data.copy_in(0, bytes);
    data
}

#[cfg(test)]
mod tests {
    use isolane_shm::SharedMemory;

    use super::*;

    #[test]
    fn pause_of_process_does_not_count_as_wait() {
        let (timeout, second) = (Duration::from_secs(5), Duration::from_secs(1));
        let mut now = Instant::now();
        let mut wait = Wait::begin(now);
        let mut has_reached = |after: Duration| {
            now += after;
            wait.has_reached(timeout, now)
        };
        assert!(!has_reached(3600 * second));
        assert!((0..17).all(|_| !has_reached(second / 4)));
        assert!(has_reached(second / 4));
    }

    #[test]
    fn members_get_same_data_while_it_changes() {
        let memory = SharedMemory::create("mirror", 8192).unwrap();
        let in_memory = || Buffer::in_shared_memory(&memory, 100, 4096).unwrap();
        let mut data = in_memory();
        data.copy_in(0, &[1; 4096]);
        let both = two_buffers(data);
        in_memory().copy_in(0, &[2; 4096]);
        assert!(both.iter().all(|data| data.to_vec() == [1; 4096]));
    }
}
