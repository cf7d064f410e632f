//! The volume of an image.

use std::sync::Arc;

use isolane_memory::{Buffer, Payload, Pool};
use isolane_volume::spec::format_size;
use isolane_volume::{
    BlockRange, Completer, Condition, OpenError, Request, Step, Volume, VolumeDescription, VolumeError,
    VolumeInfo, VolumeTree,
};
use smallvec::{SmallVec, smallvec};
use uuid::Uuid;

use crate::ffi::{self, Errno, Finish, Operation};
use crate::state::{Claim, Shared};

/// Volume of an image.
pub(crate) struct RbdVolume {
    pub shared: Arc<Shared>,
    pub description: VolumeDescription,
    pub tree: VolumeTree,
    /// Identity of the image, also under a requested one.
    pub store: Uuid,
    /// Prevents that this program opens the image again for writes.
    pub _claim: Option<Arc<Claim>>,
}

impl Volume for RbdVolume {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn blocks(&self) -> u64 {
        self.shared.health.sizes().0 / u64::from(self.description.info.block_size)
    }

    fn resize(&self, bytes: Option<u64>, may_shrink: bool) -> Result<u64, OpenError> {
        let Shared { image, health, .. } = &*self.shared;
        let fail = |reason: String, remedy: &str| OpenError::new(self.name(), reason, remedy);
        let present = image.bytes().map_err(|error| fail(error.to_string(), "check the cluster"))?;
        health.resize(present);
        if bytes.is_some_and(|bytes| bytes != present) {
            let reason = format!("the image has {}", format_size(present));
            return Err(fail(reason, "change its size with `rbd resize`, then leave the size out here"));
        }
        let (served, _) = health.sizes();
        if present < served && !may_shrink {
            let reason =
                format!("its size would shrink from {} to {}", format_size(served), format_size(present));
            return Err(fail(reason, "allow that with --shrink if no host uses the blocks beyond"));
        }
        health.serve(present);
        Ok(self.blocks())
    }

    fn stores(&self) -> Vec<Uuid> {
        vec![self.store]
    }

    fn conditions(&self) -> Vec<Condition> {
        let conditions = self.shared.conditions().into_iter();
        let named = |(text, is_failure)| Condition { name: self.name().to_owned(), text, is_failure };
        conditions.map(named).collect()
    }

    fn tree(&self) -> VolumeTree {
        self.tree.clone()
    }

    fn reads_into_pool(&self) -> bool {
        true
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        let is_promise = request.is_change() || matches!(request, Request::Flush);
        let checked = request.check(&VolumeInfo { blocks: self.blocks(), ..*self.info() });
        let end = self.end_of(&request);
        if let Err(error) = checked.and_then(|()| self.shared.health.check(is_promise, end)) {
            return request.fail(error, pool);
        }
        let mut buffer = None;
        if let Request::Read { blocks, .. } = &request {
            buffer = pool.buffer(self.bytes(*blocks) as usize);
            if buffer.is_none() {
                return Step::Retry(request);
            }
        }
        let (completer, step) = Step::pending(&request);
        let mut operations = self.operations(request, buffer);
        // The first one is popped first.
        operations.reverse();
        self.shared.health.on_start(is_promise);
        Sequence { shared: Arc::clone(&self.shared), operations, completer, is_promise }.next(None);
        step
    }
}

impl RbdVolume {
    fn bytes(&self, blocks: u64) -> u64 {
        blocks * u64::from(self.description.info.block_size)
    }

    /// Returns the end of a request that was checked, in bytes.
    fn end_of(&self, request: &Request) -> u64 {
        let end = |lba: u64, blocks: u64| lba.saturating_add(blocks);
        let end = match request {
            Request::Read { lba, blocks }
            | Request::Write { lba, blocks, .. }
            | Request::WriteZeroes { lba, blocks, .. } => end(*lba, *blocks),
            Request::Deallocate { ranges, .. } => {
                ranges.iter().map(|range| end(range.lba, range.blocks)).max().unwrap_or(0)
            }
            Request::Flush | Request::Continue(_) => 0,
        };
        end.saturating_mul(u64::from(self.description.info.block_size))
    }

    /// Returns the operations of a request, in order.
    fn operations(&self, request: Request, buffer: Option<Buffer>) -> Operations {
        let (mut operations, fua): (Operations, bool) = match request {
            Request::Read { lba, .. } => {
                let buffer = buffer.unwrap_or_default();
                (smallvec![Operation::Read { offset: self.bytes(lba), buffer }], false)
            }
            Request::Write { lba, data, fua, .. } => {
                (smallvec![Operation::Write { offset: self.bytes(lba), buffer: data }], fua)
            }
            Request::WriteZeroes { lba, blocks, fua, deallocate } => {
                let (offset, len) = (self.bytes(lba), self.bytes(blocks));
                (smallvec![Operation::WriteZeroes { offset, len, keep_space: !deallocate }], fua)
            }
            Request::Deallocate { ranges, fua } => {
                let discard = |range: &BlockRange| Operation::Discard {
                    offset: self.bytes(range.lba),
                    len: self.bytes(range.blocks),
                };
                (ranges.iter().map(discard).collect(), fua)
            }
            Request::Flush => (smallvec![Operation::Flush], false),
            Request::Continue(_) => unreachable!("an RBD volume never continues a request"),
        };
        operations.retain(|operation| !operation.is_empty());
        if fua && self.description.info.volatile_cache {
            operations.push(Operation::Flush);
        }
        operations
    }
}

impl Shared {
    /// Returns texts, each with whether data is lost unless the operator acts.
    fn conditions(&self) -> Vec<(String, bool)> {
        let mut conditions = Vec::new();
        if self.health.is_lost() {
            conditions
                .push(("lost the lock of its image; see the log, then restart this target".to_owned(), true));
        }
        let full = self.cluster.full.lock();
        for (pool, full) in self.pools.iter().filter_map(|pool| Some((pool, full.get(pool)?))) {
            let text = if full.is_full { "is full, and writes wait" } else { "has space" };
            conditions.push((format!("pool {pool} {text} (full {} times)", full.times), false));
        }
        conditions.extend(self.cluster.trouble.lock().clone().map(|text| (text, false)));
        let (served, present) = self.health.sizes();
        if present != served {
            conditions
                .push((format!("the image has {present} bytes, {served} are served"), present < served));
        }
        conditions
    }
}

type Operations = SmallVec<[Operation; 2]>;

/// The operations of a request, one after the other.
struct Sequence {
    shared: Arc<Shared>,
    /// The next one is the last.
    operations: Operations,
    completer: Completer,
    is_promise: bool,
}

impl Sequence {
    /// Starts the next operation, or completes the request with the data of a read.
    fn next(mut self, data: Option<Buffer>) {
        match self.operations.pop() {
            Some(mut operation) => {
                self.operations.extend(operation.split_off(MAX_CHUNK));
                let image = Arc::clone(&self.shared.image);
                ffi::start(&image, operation, self);
            }
            None => self.complete(Ok(data)),
        }
    }

    fn complete(self, result: Result<Option<Buffer>, VolumeError>) {
        self.shared.health.on_finish(self.is_promise);
        self.completer.complete(result.map(|data| data.map_or_else(Payload::default, Buffer::into_payload)));
    }
}

impl Finish for Sequence {
    fn finish(self, result: Result<usize, Errno>, buffer: Option<Buffer>) {
        match result {
            Err(error) => {
                log::limited!(Error, "{}: {error}", self.shared.address.name);
                let error = self.shared.health.error(error, self.is_promise);
                self.complete(Err(error));
            }
            Ok(_) if self.is_promise => self.next(None),
            Ok(count) if buffer.as_ref().is_some_and(|buffer| buffer.len() > count) => {
                self.complete(Err(VolumeError::Shrunk));
            }
            Ok(_) => self.next(buffer),
        }
    }
}

/// Longest discard or zeroing of one operation, in bytes, so that librbd does not split it into too many.
const MAX_CHUNK: u64 = 1 << 30;
