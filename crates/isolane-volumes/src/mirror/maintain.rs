//! Background work of a mirror: copies regions in which members can differ, and clears the bits of idle regions.
//!
//! Invariant: a bit is cleared only after both members have been flushed with no later write in its region.

use std::sync::Arc;

use isolane_memory::Payload;
use isolane_volume::{BlockRange, NestedIo, Outcome, Request};

use super::requests::{Mirror, buffer};
use super::state::{NO_ANSWER, State};

impl Mirror {
    /// Copies all regions marked for copying, and clears the bits of regions that were not written since the last
    /// call. Ends early if the mirror is closed.
    pub async fn maintain(self: Arc<Self>, io: NestedIo) -> Outcome {
        while let Some((region, target)) = self.next_copy() {
            self.copy_region(&io, region, target).await?;
        }
        let idle = self.state.lock().take_idle();
        if idle.is_empty() && self.state.lock().incomplete().is_none() {
            return Ok(Payload::default());
        }
        // Copies are durable before the record calls their member complete.
        self.flush(&io).await?;
        self.state.lock().complete(&self.name);
        self.state.lock().clear_idle(idle);
        self.commit(&io, State::is_saved).await?;
        Ok(Payload::default())
    }

    fn next_copy(&self) -> Option<(u64, usize)> {
        self.state.lock().next_copy(&self.name)
    }

    /// Copies the blocks of a region that differ. Requests for its blocks wait.
    async fn copy_region(self: &Arc<Self>, io: &NestedIo, region: u64, target: usize) -> Outcome {
        let span = self.state.lock().blocks_of(region);
        let _lock = self.lock(io, span, true).await;
        let source = self.state.lock().source();
        for lba in (span.lba..span.lba + span.blocks).step_by(COPY_BLOCKS as usize) {
            let blocks = COPY_BLOCKS.min(span.lba + span.blocks - lba);
            let part = BlockRange { lba, blocks };
            let bytes = self.start(io, source, Request::Read { lba, blocks })?.await?.to_vec();
            let current = self.answer(io, target, Request::Read { lba, blocks }).await;
            let copied = match current {
                Ok(current) if current.to_vec() == bytes => continue,
                Err(NO_ANSWER) => Err(NO_ANSWER),
                _ => {
                    let data = buffer(&bytes, bytes.len());
                    let write = Request::Write { lba, blocks, data, fua: false };
                    self.answer(io, target, write).await.map(drop)
                }
            };
            let mut results = [Some(Ok(())), Some(Ok(()))];
            results[target] = Some(copied);
            self.settle(io, results, Some(part)).await?;
            if !self.state.lock().is_live(target) {
                return Ok(Payload::default());
            }
        }
        self.state.lock().on_copied(&self.name, region);
        Ok(Payload::default())
    }
}

/// Blocks that are copied at a time.
const COPY_BLOCKS: u64 = 64;
