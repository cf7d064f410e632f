//! The data of a memory volume in a memory file, with which another program continues the volume.
//!
//! The file has the size of the volume in whole pages; a hole is a page that the volume does not have. Invariant: the file
//! never changes its size.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use isolane_memory::{PAGE_SIZE, Page, PageTable};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, SeekFrom, fallocate, fcntl_add_seals, fcntl_get_seals,
    memfd_create, seek,
};
use rustix::io::{Errno, preadv, pwritev};
use uuid::Uuid;

/// A copy of a memory volume that follows its changes.
#[derive(Debug)]
pub struct MemoryCopy {
    file: File,
    /// The pages in the file, which the volume does not modify while they are here.
    copied: PageTable,
}

impl MemoryCopy {
    /// Creates a copy without data of a volume with this size in bytes.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(bytes: u64) -> io::Result<MemoryCopy> {
        let len = bytes.next_multiple_of(PAGE_SIZE as u64);
        let copied = PageTable::new((len / PAGE_SIZE as u64) as usize).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels before 6.3 do not know the flag.
        let file = memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL).or_else(|error| match error {
            Errno::INVAL => memfd_create(NAME, flags),
            error => Err(error),
        })?;
        let file = File::from(file);
        file.set_len(len)?;
        fcntl_add_seals(&file, FIXED_SIZE | SealFlags::SEAL)?;
        Ok(MemoryCopy { file, copied })
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the bytes that [`MemoryCopy::update`] would copy now.
    pub fn changed_bytes(&self, volume: &PageTable) -> u64 {
        volume.count_changed(&self.copied) as u64 * PAGE_SIZE as u64
    }

    /// Copies what has changed since the last call. Requests in flight can change the volume at the same time; those that
    /// have ended are in the copy.
    ///
    /// # Errors
    /// If the system has no memory for it. The copy is unusable then.
    pub fn update(&self, volume: &PageTable) -> io::Result<()> {
        let mut run = Run { file: &self.file, first: 0, pages: Vec::with_capacity(MAX_RUN) };
        volume.update_copy(&self.copied, |index, page| run.add(index, page))?;
        run.write()
    }
}

/// Adjacent pages that are written at once.
struct Run<'a> {
    file: &'a File,
    first: usize,
    pages: Vec<Page>,
}

impl Run<'_> {
    fn add(&mut self, index: usize, page: Option<&Page>) -> io::Result<()> {
        if index != self.first + self.pages.len() || self.pages.len() == MAX_RUN || page.is_none() {
            self.write()?;
            self.first = index;
        }
        match page {
            Some(page) => self.pages.push(page.clone()),
            None => {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(self.file, hole, offset(index), PAGE_SIZE as u64)?;
            }
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let slices: Vec<IoSlice<'_>> = self.pages.iter().map(|page| IoSlice::new(page.bytes())).collect();
        let mut left = &slices[..];
        while !left.is_empty() {
            let done = slices.len() - left.len();
            match pwritev(self.file, left, offset(self.first + done)) {
                // The file has whole pages only.
                Ok(written) if written >= PAGE_SIZE => left = &left[written / PAGE_SIZE..],
                Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        drop(slices);
        self.pages.clear();
        Ok(())
    }
}

/// Data with which a memory volume continues.
#[derive(Clone, Debug)]
pub struct MemoryImage {
    file: Arc<File>,
    pub(super) uuid: Uuid,
    pub(super) generation: Uuid,
}

impl MemoryImage {
    /// Returns the data in the file of a [`MemoryCopy`], of a volume with this size in bytes, identity, and generation.
    ///
    /// # Errors
    /// If it is not such a file, or has another size.
    pub fn new(file: File, bytes: u64, uuid: Uuid, generation: Uuid) -> io::Result<MemoryImage> {
        let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        let seals = fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        if !seals.contains(FIXED_SIZE) {
            return Err(invalid("it is not a sealed memory file".to_owned()));
        }
        let (len, expected) = (file.metadata()?.len(), bytes.next_multiple_of(PAGE_SIZE as u64));
        if len != expected {
            return Err(invalid(format!("it has {len} bytes in place of {expected}")));
        }
        Ok(MemoryImage { file: Arc::new(file), uuid, generation })
    }

    /// Fills an empty table.
    pub(super) fn load(&self, pages: &PageTable) -> io::Result<()> {
        if self.file.metadata()?.len() != offset(pages.len()) {
            let reason = "the data of the program before has another size";
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        // Hosts wait in the meantime.
        let next = AtomicUsize::new(0);
        let load = || {
            loop {
                let first = next.fetch_add(CHUNK, Ordering::Relaxed);
                if first >= pages.len() {
                    return Ok(());
                }
                self.load_chunk(first, pages.len().min(first + CHUNK), pages)?;
            }
        };
        let chunks = pages.len().div_ceil(CHUNK);
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(chunks).min(MAX_THREADS);
        thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(load)).collect();
            let own = load();
            let joined = others
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.fold(own, io::Result::and)
        })
    }

    fn load_chunk(&self, mut at: usize, end: usize, pages: &PageTable) -> io::Result<()> {
        while at < end {
            let start = match seek(&self.file, SeekFrom::Data(offset(at))) {
                Ok(start) => start as usize / PAGE_SIZE,
                Err(Errno::NXIO) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if start >= end {
                return Ok(());
            }
            at = seek(&self.file, SeekFrom::Hole(offset(start)))? as usize / PAGE_SIZE;
            for first in (start..end.min(at)).step_by(MAX_RUN) {
                self.load_run(first, end.min(at).min(first + MAX_RUN), pages)?;
            }
        }
        Ok(())
    }

    fn load_run(&self, mut first: usize, end: usize, pages: &PageTable) -> io::Result<()> {
        let mut run: Vec<Page> = (first..end).map(|_| Page::zeroed()).collect();
        while first < end {
            let slices = run.iter_mut().filter_map(Page::bytes_mut);
            let mut slices: Vec<IoSliceMut<'_>> = slices.map(|bytes| IoSliceMut::new(bytes)).collect();
            let read = match preadv(&*self.file, &mut slices, offset(first)) {
                Ok(read) if read >= PAGE_SIZE => read / PAGE_SIZE,
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for page in run.drain(..read) {
                pages.set(first, page);
                first += 1;
            }
        }
        Ok(())
    }
}

fn offset(index: usize) -> u64 {
    index as u64 * PAGE_SIZE as u64
}

const NAME: &str = "isolane-volume";
const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// Pages that are copied by one call of the system.
const MAX_RUN: usize = 256;
/// Pages that a thread takes at once.
const CHUNK: usize = 4096;
const MAX_THREADS: usize = 8;

#[cfg(test)]
mod tests;
