//! A volume in memory: a table of counted pages in which a missing page reads as zeroes.
//!
//! It survives nothing but its target's connections. Whole pages are published by swapping them in, parts of
//! a page are copied under the page's lock; a read looks at the pages it started with, so it never sees half
//! of a block.

use std::io;
use std::ops::Range;

use isolane_memory::{Buffer, PAGE_SIZE, PageTable, Payload, Pool, pages_for};
use isolane_reactor::file::Operation;
use smallvec::{SmallVec, smallvec};

use crate::{BlockRange, Generation, Geometry, Identity, Request, RestartLoss, Soon, Step, Task, Volume};

/// A volume in memory.
#[derive(Debug)]
pub struct MemoryVolume {
    geometry: Geometry,
    identity: Identity,
    name: String,
    pages: PageTable,
    generation: Generation,
}

impl MemoryVolume {
    /// A volume of zeroes. Memory is taken as it is written; `None` if the system refuses even the table of
    /// pages.
    pub fn new(name: String, geometry: Geometry, identity: Identity) -> Option<MemoryVolume> {
        let pages = PageTable::new(geometry.bytes().div_ceil(PAGE_SIZE as u64) as usize)?;
        let generation = Generation::of_program(RestartLoss::Content);
        Some(MemoryVolume { geometry, identity, name, pages, generation })
    }

    fn run(&self, request: Request, pool: &mut Pool) -> Step {
        match request {
            Request::Read { lba, blocks } => {
                Step::Done(Ok(self.read(self.offset(lba), self.offset(blocks), pool)))
            }
            Request::Write { ref data, .. } if !pool.may_retire(pages_for(data.len()) + 1) => {
                Step::Later(request)
            }
            Request::Write { lba, data, .. } => {
                self.write(self.offset(lba), data, pool);
                Step::done()
            }
            Request::Flush => Step::done(),
            Request::Rest(_) => unreachable!("a memory volume leaves no rest"),
            Request::WriteZeroes { lba, blocks, fua, deallocate } => {
                let mut ranges = smallvec![BlockRange { lba, blocks }];
                match self.zero_some(&mut ranges, pool).or_else(|| ranges.pop()) {
                    None => Step::done(),
                    Some(BlockRange { lba, blocks }) => {
                        Step::Later(Request::WriteZeroes { lba, blocks, fua, deallocate })
                    }
                }
            }
            Request::Deallocate { mut ranges, fua } => {
                let rest = self.zero_some(&mut ranges, pool);
                ranges.extend(rest);
                if ranges.is_empty() {
                    Step::done()
                } else {
                    Step::Later(Request::Deallocate { ranges, fua })
                }
            }
        }
    }

    /// Zeroes as much as one turn has time for; returns what is left of the range it was at.
    fn zero_some(&self, ranges: &mut SmallVec<[BlockRange; 1]>, pool: &mut Pool) -> Option<BlockRange> {
        let mut budget = ZERO_MAX / u64::from(self.geometry.block_size);
        while budget > 0
            && pool.may_retire(ZERO_PAGES)
            && let Some(BlockRange { lba, blocks }) = ranges.pop()
        {
            let now = blocks.min(budget);
            self.zero(self.offset(lba), self.offset(now), pool);
            if now < blocks {
                return Some(BlockRange { lba: lba + now, blocks: blocks - now });
            }
            budget -= now;
        }
        None
    }

    /// Bytes before a block. The whole volume has been found to fit.
    fn offset(&self, lba: u64) -> usize {
        lba as usize * self.geometry.block_size as usize
    }

    #[inline]
    fn read(&self, offset: usize, len: usize, pool: &mut Pool) -> Payload {
        let start = offset % PAGE_SIZE;
        if len == 0 || len > PAGE_SIZE - start {
            return self.read_pieces(offset, len, pool);
        }
        match self.pages.look(offset / PAGE_SIZE, pool) {
            Some(page) => {
                page.prefetch();
                Payload::from_guard(page, start, len)
            }
            None => Payload::zeroes(len),
        }
    }

    fn read_pieces(&self, offset: usize, len: usize, pool: &mut Pool) -> Payload {
        let count = pages_for(offset % PAGE_SIZE + len);
        self.pages.prefetch_entries(offset / PAGE_SIZE, count);
        let mut payload = Payload::with_capacity(count);
        for piece in pieces(offset, len) {
            match self.pages.look(piece.page, pool) {
                Some(page) => {
                    if len <= SHORT_BYTES {
                        page.prefetch();
                    }
                    payload.push_guard(page, piece.start, piece.len);
                }
                None => payload.push_zeroes(piece.len),
            }
        }
        payload
    }

    #[inline]
    fn write(&self, offset: usize, data: Buffer, pool: &mut Pool) {
        if !offset.is_multiple_of(PAGE_SIZE) {
            return self.copy(offset, data, pool);
        }
        match data.into_page() {
            Ok(page) => self.pages.put(offset / PAGE_SIZE, page, pool),
            Err(data) => self.write_pieces(offset, data, pool),
        }
    }

    fn write_pieces(&self, offset: usize, data: Buffer, pool: &mut Pool) {
        if !data.len().is_multiple_of(PAGE_SIZE) {
            return self.copy(offset, data, pool);
        }
        match data.into_pages() {
            Err(data) => self.copy(offset, data, pool),
            Ok(mut pages) => {
                self.pages.put_all(offset / PAGE_SIZE, pages.drain(..), pool);
                pool.recycle_list(pages);
            }
        }
    }

    /// For data that does not come as whole pages of the volume.
    fn copy(&self, offset: usize, data: Buffer, pool: &mut Pool) {
        let mut from = 0;
        for piece in pieces(offset, data.len()) {
            self.pages.change(piece.page, piece.range(), pool, |target| data.copy_to(from, target));
            from += piece.len;
        }
        pool.recycle_buffer(data);
    }

    /// Drops whole pages, and zeroes parts of pages that exist.
    fn zero(&self, offset: usize, len: usize, pool: &mut Pool) {
        for piece in pieces(offset, len) {
            if piece.len == PAGE_SIZE {
                self.pages.take(piece.page, pool);
            } else if !self.pages.is_vacant(piece.page) {
                self.pages.change(piece.page, piece.range(), pool, |bytes| bytes.fill(0));
            }
        }
    }
}

impl Volume for MemoryVolume {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn generation(&self) -> Option<Generation> {
        Some(self.generation)
    }

    fn name(&self) -> &str {
        &self.name
    }

    #[inline]
    fn foresee(&self, lba: u64, soon: Soon) {
        let page = (lba as usize).wrapping_mul(self.geometry.block_size as usize) / PAGE_SIZE;
        match soon {
            Soon::Next => self.pages.prefetch_page(page),
            Soon::AfterNext => self.pages.prefetch_entry(page),
        }
    }

    fn read_now(&self, lba: u64, blocks: u64, pool: &mut Pool) -> Option<Payload> {
        let (offset, len) = self.geometry.locate(lba, blocks).ok()?;
        Some(self.read(offset as usize, len as usize, pool))
    }

    fn write_now(&self, lba: u64, blocks: u64, data: Buffer, pool: &mut Pool) -> Result<(), Buffer> {
        match self.geometry.locate(lba, blocks) {
            Ok((offset, len))
                if len == data.len() as u64
                    && !self.geometry.read_only
                    && pool.may_retire(pages_for(data.len()) + 1) =>
            {
                self.write(offset as usize, data, pool);
                Ok(())
            }
            _ => Err(data),
        }
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        let Err(error) = self.geometry.check(&request) else {
            return self.run(request, pool);
        };
        if let Request::Write { data, .. } = request {
            pool.recycle_buffer(data);
        }
        Step::failed(error)
    }

    fn resume(&self, _: Task, _: io::Result<usize>, _: Operation, _: &mut Pool) -> Step {
        unreachable!("a memory volume asks for no file operation")
    }
}

/// The part of a range that lies in one page.
struct Piece {
    page: usize,
    start: usize,
    len: usize,
}

impl Piece {
    /// Where in the page it is.
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

fn pieces(offset: usize, len: usize) -> impl Iterator<Item = Piece> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let start = at % PAGE_SIZE;
        let piece = Piece { page: at / PAGE_SIZE, start, len: (PAGE_SIZE - start).min(end - at) };
        at += piece.len;
        (piece.len > 0).then_some(piece)
    })
}

/// Bytes zeroed in one turn.
const ZERO_MAX: u64 = 32 << 20;
/// Pages that they lie in.
const ZERO_PAGES: usize = pages_for(ZERO_MAX as usize) + 1;
/// Pages of reads up to this length are prefetched; those of longer ones would push each other out of the
/// cache.
const SHORT_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests;
