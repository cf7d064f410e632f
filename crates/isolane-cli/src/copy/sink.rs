//! Destination of a copy: chunks in ascending order, durable at the end.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use isolane_host::{BlockRange, Client, Completion, Request, Wait};
use rustix::fs::{FallocateFlags, OFlags, fallocate};

use super::endpoint::{Endpoint, EndpointInfo, is_block_device, is_stream};
use super::partial::{Partial, open_failure};
use super::source::{Chunk, WINDOW, is_zero};
use crate::failure::{Context, Failure};
use crate::signals;

/// The smallest hole that is left in a file.
const HOLE_BYTES: usize = 4096;

/// Zeroes to write where there is no cheaper way.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Where a copy writes to.
pub enum Sink {
    /// Standard output, or another pipe or character device.
    Pipe(PipeSink),
    /// A file or block device.
    File(FileSink),
    /// A volume.
    Volume(Box<VolumeSink>),
}

impl Sink {
    /// Opens one side for writing; a regular file stays as it is until the new one is published.
    pub fn open(side: &Endpoint, info: EndpointInfo, length: Option<u64>) -> Result<Sink, Failure> {
        match (side, info.client) {
            (Endpoint::File(path), _) if is_stream(path) => PipeSink::open(path).map(Sink::Pipe),
            (Endpoint::File(path), _) => FileSink::open(path, info.capacity, length).map(Sink::File),
            (Endpoint::Volume(_), Some(client)) => {
                let sink = VolumeSink::new(client);
                let (written, name) = (Arc::clone(&sink.written), side.to_string());
                signals::report_on_signal(move || Some(written.describe(&name)))?;
                Ok(Sink::Volume(Box::new(sink)))
            }
            _ => Ok(Sink::Pipe(PipeSink { output: Box::new(io::stdout()), name: "standard output".into() })),
        }
    }

    /// Writes the next piece.
    pub fn put(&mut self, piece: Chunk) -> Result<(), Failure> {
        match self {
            Sink::Pipe(pipe) => pipe.put(&piece).map_err(|why| pipe.failure(&why)),
            Sink::File(file) => file
                .put(&piece)
                .map_err(|why| Failure::from_io(format!("cannot write {}", file.path.display()), &why)),
            Sink::Volume(volume) => volume.put(piece),
        }
    }

    /// Makes all data durable. Returns a regular file for publication.
    pub fn finish(self, length: u64) -> Result<Option<Partial>, Failure> {
        match self {
            Sink::Pipe(mut pipe) => pipe.output.flush().map_err(|why| pipe.failure(&why))?,
            Sink::File(file) => {
                let what = format!("cannot make {} durable", file.path.display());
                return file.finish(length).map_err(|why| Failure::from_io(what, &why));
            }
            Sink::Volume(volume) => volume.finish()?,
        }
        Ok(None)
    }
}

/// Destination with sequential access only.
pub struct PipeSink {
    output: Box<dyn Write>,
    name: String,
}

impl PipeSink {
    fn open(path: &Path) -> Result<PipeSink, Failure> {
        let file = OpenOptions::new().write(true).open(path);
        let file = file.map_err(|why| open_failure(path, &why))?;
        Ok(PipeSink { output: Box::new(file), name: path.display().to_string() })
    }

    fn put(&mut self, piece: &Chunk) -> io::Result<()> {
        match piece {
            Chunk::Data(buffer) => self.output.write_all(buffer.as_slice().unwrap_or_default()),
            Chunk::Zeroes(length) => for_zeroes(*length, |zeroes| self.output.write_all(zeroes)),
        }
    }

    fn failure(&self, why: &io::Error) -> Failure {
        Failure::from_io(format!("cannot write to {}", self.name), why)
    }
}

fn for_zeroes(mut length: u64, mut write: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    while length > 0 {
        let now = length.min(ZEROES.len() as u64);
        write(&ZEROES[..now as usize])?;
        length -= now;
    }
    Ok(())
}

/// A regular file, in which zeroes become holes, or a block device, on which they are written.
pub struct FileSink {
    file: File,
    path: PathBuf,
    offset: u64,
    capacity: Option<u64>,
    /// None of a block device.
    partial: Option<Partial>,
}

impl FileSink {
    fn open(path: &Path, capacity: Option<u64>, length: Option<u64>) -> Result<FileSink, Failure> {
        let (partial, file) = match is_block_device(path) {
            true => {
                let exclusive = OFlags::EXCL.bits().cast_signed();
                let opened = OpenOptions::new().write(true).custom_flags(exclusive).open(path);
                (None, opened.map_err(|why| open_failure(path, &why))?)
            }
            false => {
                let (partial, file) = Partial::create(path)?;
                file.set_len(length.unwrap_or(0)).map_err(|why| open_failure(path, &why))?;
                (Some(partial), file)
            }
        };
        Ok(FileSink { file, path: path.to_owned(), offset: 0, capacity, partial })
    }

    fn put(&mut self, piece: &Chunk) -> io::Result<()> {
        let end = self.offset + piece.length();
        if self.capacity.is_some_and(|capacity| end > capacity) {
            return Err(io::Error::other("the device is too small for the source"));
        }
        match piece {
            Chunk::Data(buffer) => self.put_data(buffer.as_slice().unwrap_or_default())?,
            Chunk::Zeroes(length) if self.partial.is_none() => self.put_zeroes(*length)?,
            Chunk::Zeroes(_) => {}
        }
        self.offset = end;
        Ok(())
    }

    /// Writes all but the holes.
    fn put_data(&self, bytes: &[u8]) -> io::Result<()> {
        if self.partial.is_none() {
            return self.file.write_all_at(bytes, self.offset);
        }
        let mut offset = self.offset;
        for run in bytes.chunks(HOLE_BYTES).collect::<Vec<_>>().chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            let length: usize = run.iter().map(|chunk| chunk.len()).sum();
            if !is_zero(run[0]) {
                let start = (offset - self.offset) as usize;
                self.file.write_all_at(&bytes[start..start + length], offset)?;
            }
            offset += length as u64;
        }
        Ok(())
    }

    fn put_zeroes(&self, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        if fallocate(&self.file, flags, self.offset, length).is_ok() {
            return Ok(());
        }
        let mut offset = self.offset;
        for_zeroes(length, |zeroes| {
            self.file.write_all_at(zeroes, offset)?;
            offset += zeroes.len() as u64;
            Ok(())
        })
    }

    fn finish(self, length: u64) -> io::Result<Option<Partial>> {
        if self.partial.is_some() {
            self.file.set_len(length)?;
        }
        self.file.sync_all()?;
        Ok(self.partial)
    }
}

/// Part of the source on the volume, for the report of an interruption.
#[derive(Default)]
struct Written {
    bytes: AtomicU64,
    is_complete: AtomicBool,
}

impl Written {
    fn describe(&self, name: &str) -> String {
        let bytes = self.bytes.load(Ordering::Relaxed);
        match self.is_complete.load(Ordering::Acquire) {
            true => format!("all {bytes} bytes were written to {name}, but not all of them were verified"),
            false => format!("{bytes} bytes were written to {name}, which holds only part of the source"),
        }
    }
}

/// A volume, with a window of writes in flight.
pub struct VolumeSink {
    client: Client,
    block_bytes: u64,
    blocks: u64,
    lba: u64,
    /// Sizes of writes in bytes, by their first blocks.
    in_flight: HashMap<u64, u64>,
    written: Arc<Written>,
    completions: Vec<Completion>,
}

impl VolumeSink {
    fn new(client: Client) -> VolumeSink {
        let namespace = client.namespace();
        let (block_bytes, blocks) = (u64::from(namespace.block_bytes), namespace.blocks);
        let written = Arc::default();
        VolumeSink { client, block_bytes, blocks, lba: 0, in_flight: HashMap::new(), written, completions: Vec::new() }
    }

    fn put(&mut self, piece: Chunk) -> Result<(), Failure> {
        let length = piece.length();
        let blocks = length / self.block_bytes;
        self.check(length, blocks)?;
        while self.in_flight.len() >= WINDOW {
            self.turn()?;
        }
        let request = match piece {
            Chunk::Data(buffer) => Request::Write { lba: self.lba, buffer, fua: false },
            Chunk::Zeroes(_) => Request::WriteZeroes {
                range: BlockRange { lba: self.lba, blocks },
                fua: false,
                deallocate: true,
            },
        };
        self.submit(request, length);
        self.lba += blocks;
        Ok(())
    }

    /// Checks a chunk of a pipe, whose size is unknown before its end.
    fn check(&self, length: u64, blocks: u64) -> Result<(), Failure> {
        let what = "cannot write to the volume";
        if !length.is_multiple_of(self.block_bytes) {
            return Err(Failure::new(
                what,
                format!("the source does not end with a whole block of {} bytes", self.block_bytes),
            )
            .with_hint("add --pad; all whole blocks before the last were written"));
        }
        if self.lba + blocks > self.blocks {
            return Err(Failure::new(what, format!("the source is larger than its {} blocks", self.blocks))
                .with_hint("choose a larger volume; this one is full of the beginning of the source"));
        }
        Ok(())
    }

    /// Submits a request with its first block as the tag.
    fn submit(&mut self, request: Request, length: u64) {
        self.client.submit(0, request, self.lba);
        self.in_flight.insert(self.lba, length);
    }

    fn turn(&mut self) -> Result<(), Failure> {
        self.client.turn(&mut self.completions, Wait::Forever);
        for completion in self.completions.drain(..) {
            let length = self.in_flight.remove(&completion.tag).unwrap_or_default();
            let offset = completion.tag * self.block_bytes;
            completion.result.map_err(|error| match length {
                0 => Failure::new("cannot flush the volume", error),
                _ => Failure::new(format!("cannot write {length} bytes to the volume at offset {offset}"), error),
            })?;
            self.written.bytes.fetch_add(length, Ordering::Relaxed);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.drain()?;
        self.submit(Request::Flush, 0);
        self.drain()?;
        self.written.is_complete.store(true, Ordering::Release);
        self.client.close();
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Failure> {
        while !self.in_flight.is_empty() {
            self.turn()?;
        }
        Ok(())
    }
}
