//! Memory volume: a table of pages in which a missing page reads as zeroes.
//!
//! Whole pages are published by swapping them in; parts of a page are copied under the page's lock.
//! A read keeps the pages that it started with, so it never returns a torn block. The data is lost
//! when the process exits, but not when it becomes another program ([`MemoryCopy`]).

mod image;

use std::io;
use std::ops::Range;

pub use self::image::{MemoryCopy, MemoryImage};
use isolane_memory::{Buffer, PAGE_SIZE, PageTable, Payload, Pool, pages_for};
use isolane_reactor::file::FileOp;
use smallvec::{SmallVec, smallvec};

use crate::{
    BlockRange, Extent, Generation, Identity, Request, RestartLoss, Step, Task, Upcoming, Volume,
    VolumeDescription, VolumeInfo, VolumeTree, tree,
};

/// A volume in memory.
#[derive(Debug)]
pub struct MemoryVolume {
    description: VolumeDescription,
    group: Option<String>,
    pages: PageTable,
}

impl MemoryVolume {
    /// Creates a volume of zeroes. Memory is allocated on write; `None` if the system refuses the
    /// page table.
    pub fn new(name: String, info: VolumeInfo, identity: Identity) -> Option<MemoryVolume> {
        let pages = PageTable::new(info.bytes().div_ceil(PAGE_SIZE as u64) as usize)?;
        let generation = Some(Generation::of_process(RestartLoss::Content));
        let description = VolumeDescription { name, info, identity, generation };
        Some(MemoryVolume { description, group: None, pages })
    }

    /// Creates a volume with the data, identity, and generation of another one, which has ended.
    ///
    /// # Errors
    /// If the data has another size, or there is no memory for it.
    pub fn from_image(name: String, info: VolumeInfo, image: &MemoryImage) -> io::Result<MemoryVolume> {
        let volume = MemoryVolume::new(name, info, Identity { uuid: image.uuid });
        let mut volume = volume.ok_or(io::ErrorKind::OutOfMemory)?;
        image.load(&volume.pages)?;
        let loses = RestartLoss::Content;
        volume.description.generation = Some(Generation { id: image.generation, loses });
        Ok(volume)
    }

    /// Sets the group of volumes that are expected to behave alike.
    #[must_use]
    pub fn with_group(self, group: Option<String>) -> MemoryVolume {
        MemoryVolume { group, ..self }
    }

    fn run(&self, request: Request, pool: &mut Pool) -> Step {
        match request {
            Request::Read { lba, blocks } => Step::Done(Ok(self.read(self.offset(lba), self.offset(blocks)))),
            Request::Write { lba, data, .. } => {
                self.write(self.offset(lba), data, pool);
                Step::done()
            }
            Request::Flush => Step::done(),
            Request::Continue(_) => unreachable!("a memory volume never splits requests into tasks"),
            Request::WriteZeroes { lba, blocks, fua, deallocate } => {
                let mut ranges = smallvec![BlockRange { lba, blocks }];
                match self.zero_step(&mut ranges, pool).or_else(|| ranges.pop()) {
                    None => Step::done(),
                    Some(BlockRange { lba, blocks }) => {
                        Step::Retry(Request::WriteZeroes { lba, blocks, fua, deallocate })
                    }
                }
            }
            Request::Deallocate { mut ranges, fua } => {
                let remaining = self.zero_step(&mut ranges, pool);
                ranges.extend(remaining);
                if ranges.is_empty() {
                    Step::done()
                } else {
                    Step::Retry(Request::Deallocate { ranges, fua })
                }
            }
        }
    }

    /// Zeroes as much as one turn allows and returns the remainder of the current range.
    fn zero_step(&self, ranges: &mut SmallVec<[BlockRange; 1]>, pool: &mut Pool) -> Option<BlockRange> {
        let mut budget = MAX_ZERO_BYTES / u64::from(self.description.info.block_size);
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

    /// Returns the offset of a block. The size of the volume fits into `usize`.
    fn offset(&self, lba: u64) -> usize {
        lba as usize * self.description.info.block_size as usize
    }

    #[inline]
    fn read(&self, offset: usize, len: usize) -> Payload {
        let start = offset % PAGE_SIZE;
        if len == 0 || len > PAGE_SIZE - start {
            return self.read_pages(offset, len);
        }
        match self.pages.get(offset / PAGE_SIZE) {
            Some(page) => Payload::from_page(page, start, len),
            None => Payload::zeroes(len),
        }
    }

    fn read_pages(&self, offset: usize, len: usize) -> Payload {
        let count = pages_for(offset % PAGE_SIZE + len);
        self.pages.prefetch_entries(offset / PAGE_SIZE, count);
        let mut payload = Payload::with_capacity(count);
        for (index, part) in page_slices(offset, len) {
            match self.pages.get(index) {
                Some(page) => {
                    if len <= SHORT_BYTES {
                        page.prefetch();
                    }
                    payload.push_page(page, part.start, part.len());
                }
                None => payload.push_zeroes(part.len()),
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
            Err(data) => self.write_pages(offset, data, pool),
        }
    }

    fn write_pages(&self, offset: usize, data: Buffer, pool: &mut Pool) {
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

    /// Copies data that is not made of whole pages of the volume.
    fn copy(&self, offset: usize, data: Buffer, pool: &mut Pool) {
        let mut from = 0;
        for (index, part) in page_slices(offset, data.len()) {
            let len = part.len();
            self.pages.modify(index, part, pool, |target| data.copy_to(from, target));
            from += len;
        }
        pool.recycle_buffer(data);
    }

    /// Drops whole pages, and zeroes parts of pages that exist.
    fn zero(&self, offset: usize, len: usize, pool: &mut Pool) {
        for (index, part) in page_slices(offset, len) {
            if part.len() == PAGE_SIZE {
                self.pages.take(index, pool);
            } else if !self.pages.is_empty_at(index) {
                self.pages.modify(index, part, pool, |bytes| bytes.fill(0));
            }
        }
    }
}

impl Volume for MemoryVolume {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn memory(&self) -> Option<&PageTable> {
        Some(&self.pages)
    }

    fn tree(&self) -> VolumeTree {
        VolumeTree { group: self.group.clone(), ..VolumeTree::new(self.name(), tree::kind::MEMORY) }
    }

    #[inline]
    fn prefetch(&self, lba: u64, upcoming: Upcoming) {
        let page = (lba as usize).wrapping_mul(self.description.info.block_size as usize) / PAGE_SIZE;
        match upcoming {
            Upcoming::Read => self.pages.prefetch_page(page, true),
            Upcoming::Write => self.pages.prefetch_page(page, false),
            Upcoming::Later => self.pages.prefetch_entry(page),
        }
    }

    fn try_read(&self, lba: u64, blocks: u64, _: &mut Pool) -> Option<Payload> {
        let (offset, len) = self.description.info.locate(lba, blocks).ok()?;
        Some(self.read(offset as usize, len as usize))
    }

    fn try_write(&self, lba: u64, blocks: u64, data: Buffer, pool: &mut Pool) -> Result<(), Buffer> {
        match self.description.info.locate(lba, blocks) {
            Ok((offset, len)) if len == data.len() as u64 && !self.description.info.read_only => {
                self.write(offset as usize, data, pool);
                Ok(())
            }
            _ => Err(data),
        }
    }

    fn extent(&self, lba: u64, blocks: u64) -> Extent {
        let first = self.offset(lba) / PAGE_SIZE;
        let end = self.offset(lba + blocks).div_ceil(PAGE_SIZE).min(first + MAX_EXTENT_PAGES);
        let is_hole = self.pages.is_empty_at(first);
        let next = (first + 1..end).find(|index| self.pages.is_empty_at(*index) != is_hole).unwrap_or(end);
        let next_lba = (next * PAGE_SIZE / self.description.info.block_size as usize) as u64;
        Extent { blocks: blocks.min(next_lba - lba), is_hole }
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        match request.check(&self.description.info) {
            Ok(()) => self.run(request, pool),
            Err(error) => request.fail(error, pool),
        }
    }

    fn resume(&self, _: Task, _: io::Result<usize>, _: FileOp, _: &mut Pool) -> Step {
        unreachable!("a memory volume has no file operations")
    }
}

/// Splits a range of bytes at pages: index and part of each page.
fn page_slices(offset: usize, len: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let (page, start) = (at / PAGE_SIZE, at % PAGE_SIZE);
        let len = (PAGE_SIZE - start).min(end - at);
        at += len;
        (len > 0).then_some((page, start..start + len))
    })
}

/// Pages that one extent covers at most, which bounds the time to find its end.
const MAX_EXTENT_PAGES: usize = 64 << 10;
/// Bytes zeroed per turn.
const MAX_ZERO_BYTES: u64 = 32 << 20;
/// Reads up to this length prefetch their pages; the pages of longer ones would evict each other
/// from the cache.
const SHORT_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests;
