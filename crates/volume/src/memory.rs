//! A volume in memory: a table of counted pages in which a missing page reads as zeroes.
//!
//! It survives nothing but its target's connections. Whole pages are published by swapping them in, parts of
//! a page are copied under the page's lock; a read holds the pages it started with, so it never sees half of
//! a block.

use std::io;

use isolane_memory::{Buffer, PAGE_SIZE, Page, PageTable, Payload, Pool, pages_for};
use isolane_reactor::file::Operation;
use smallvec::{SmallVec, smallvec};

use crate::{BlockRange, Geometry, Identity, Request, Soon, Step, Task, Volume};

/// A volume in memory.
#[derive(Debug)]
pub struct MemoryVolume {
    geometry: Geometry,
    identity: Identity,
    name: String,
    pages: PageTable,
}

impl MemoryVolume {
    /// A volume of zeroes. Memory is taken as it is written; `None` if the system refuses even the table of
    /// pages.
    pub fn new(name: String, geometry: Geometry, identity: Identity) -> Option<MemoryVolume> {
        let pages = PageTable::new(geometry.bytes().div_ceil(PAGE_SIZE as u64) as usize)?;
        Some(MemoryVolume { geometry, identity, name, pages })
    }

    fn run(&self, request: Request, pool: &mut Pool) -> Step {
        match request {
            Request::Read { lba, blocks } => Step::Done(Ok(self.read(self.offset(lba), self.offset(blocks)))),
            Request::Write { lba, data, .. } => {
                self.write(self.offset(lba), data, pool);
                Step::done()
            }
            Request::Flush => Step::done(),
            Request::WriteZeroes { lba, blocks, fua, deallocate } => {
                match self.zero_some(&mut smallvec![BlockRange { lba, blocks }], pool) {
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
    fn read(&self, offset: usize, len: usize) -> Payload {
        let start = offset % PAGE_SIZE;
        if len == 0 || len > PAGE_SIZE - start {
            return self.read_pieces(offset, len);
        }
        match self.pages.page(offset / PAGE_SIZE) {
            Some(page) => {
                page.prefetch();
                Payload::from_page(page, start, len)
            }
            None => Payload::zeroes(len),
        }
    }

    fn read_pieces(&self, offset: usize, len: usize) -> Payload {
        let count = pages_for(offset % PAGE_SIZE + len);
        let mut payload = Payload::with_capacity(count);
        let (mut start, mut left) = (offset % PAGE_SIZE, len);
        self.pages.pages(offset / PAGE_SIZE, if len == 0 { 0 } else { count }, |page| {
            let part = left.min(PAGE_SIZE - start);
            match page {
                Some(page) => {
                    if len <= SHORT_BYTES {
                        page.prefetch();
                    }
                    payload.push_page(page, start, part);
                }
                None => payload.push_zeroes(part),
            }
            (start, left) = (0, left - part);
        });
        payload
    }

    #[inline]
    fn write(&self, offset: usize, data: Buffer, pool: &mut Pool) {
        if !offset.is_multiple_of(PAGE_SIZE) {
            return self.copy(offset, data, pool);
        }
        match data.into_page() {
            Ok(page) => self.publish(offset / PAGE_SIZE, page, pool),
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
                pages.iter().for_each(|page| pool.forget(page));
                self.pages.swap_all(offset / PAGE_SIZE, pages.drain(..), |old| pool.recycle_page(old));
                pool.recycle_list(pages);
            }
        }
    }

    fn publish(&self, index: usize, page: Page, pool: &mut Pool) {
        pool.forget(&page);
        if let Some(old) = self.pages.swap(index, Some(page)) {
            pool.recycle_page(old);
        }
    }

    /// For data that does not come as whole pages of the volume.
    fn copy(&self, offset: usize, data: Buffer, pool: &mut Pool) {
        let mut from = 0;
        for piece in pieces(offset, data.len()) {
            self.overlay(&piece, pool, |target| data.copy_to(from, target));
            from += piece.len;
        }
        pool.recycle_buffer(data);
    }

    /// Changes a part of a page, alone with it. A page that a read still holds is replaced, not written.
    fn overlay(&self, piece: &Piece, pool: &mut Pool, fill: impl FnOnce(&mut [u8])) {
        let mut fresh = pool.page();
        let old = self.pages.with(piece.page, |current| {
            let range = piece.start..piece.start + piece.len;
            if let Some(bytes) = current.as_mut().and_then(Page::bytes_mut) {
                fill(&mut bytes[range]);
                return Some(fresh);
            }
            if let Some(bytes) = fresh.bytes_mut() {
                match current.as_ref() {
                    Some(page) => bytes.copy_from_slice(page.bytes()),
                    None => bytes.fill(0),
                }
                fill(&mut bytes[range]);
            }
            current.replace(fresh)
        });
        if let Some(unused) = old {
            pool.recycle_page(unused);
        }
    }

    /// Drops whole pages, and zeroes parts of pages that exist.
    fn zero(&self, offset: usize, len: usize, pool: &mut Pool) {
        for piece in pieces(offset, len) {
            if piece.len == PAGE_SIZE {
                if let Some(old) = self.pages.take(piece.page) {
                    pool.recycle_page(old);
                }
            } else if self.pages.page(piece.page).is_some() {
                self.overlay(&piece, pool, |bytes| bytes.fill(0));
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

    fn read_now(&self, lba: u64, blocks: u64) -> Option<Payload> {
        let (offset, len) = self.geometry.locate(lba, blocks).ok()?;
        Some(self.read(offset as usize, len as usize))
    }

    fn write_now(&self, lba: u64, blocks: u64, data: Buffer, pool: &mut Pool) -> Result<(), Buffer> {
        match self.geometry.locate(lba, blocks) {
            Ok((offset, len)) if len == data.len() as u64 && !self.geometry.read_only => {
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
const ZERO_MAX: u64 = 64 << 20;
/// Pages of reads up to this length are prefetched; those of longer ones would push each other out of the
/// cache.
const SHORT_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests;
