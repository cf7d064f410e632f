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
use crate::failure::Failure;
use crate::signals;

/// Minimum size of a hole in a file.
const HOLE_BYTES: usize = 4096;

/// Zeros to write without a cheaper operation.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Destination of a copy.
pub enum Sink {
    /// Standard output, or another pipe or character device.
    Pipe(PipeSink),
    /// A file or block device.
    File(FileSink),
    /// A volume.
    Volume(Box<VolumeSink>),
}

impl Sink {
    /// Opens an endpoint for writing. A regular file stays unchanged until the new one is published.
    pub fn open(endpoint: &Endpoint, info: EndpointInfo, length: Option<u64>) -> Result<Sink, Failure> {
        match (endpoint, info.client) {
            (Endpoint::File(path), _) if is_stream(path) => PipeSink::open(path).map(Sink::Pipe),
            (Endpoint::File(path), _) => FileSink::open(path, info.capacity, length).map(Sink::File),
            (Endpoint::Volume(_), Some(client)) => {
                let sink = VolumeSink::new(client);
                let (written, name) = (Arc::clone(&sink.written), endpoint.to_string());
                signals::report_on_signal(move || Some(written.describe(&name)))?;
                Ok(Sink::Volume(Box::new(sink)))
            }
            _ => Ok(Sink::Pipe(PipeSink { output: Box::new(io::stdout()), name: "standard output".into() })),
        }
    }

    /// Writes the next chunk.
    pub fn put(&mut self, chunk: Chunk) -> Result<(), Failure> {
        match self {
            Sink::Pipe(pipe) => pipe.put(&chunk).map_err(|error| pipe.failure(&error)),
            Sink::File(file) => file
                .put(&chunk)
                .map_err(|error| Failure::from_io(format!("cannot write {}", file.path.display()), &error)),
            Sink::Volume(volume) => volume.put(chunk),
        }
    }

    /// Makes all data durable. Returns a regular file for publication.
    pub fn finish(self, length: u64) -> Result<Option<Partial>, Failure> {
        match self {
            Sink::Pipe(mut pipe) => pipe.output.flush().map_err(|error| pipe.failure(&error))?,
            Sink::File(file) => {
                let what = format!("cannot make {} durable", file.path.display());
                return file.finish(length).map_err(|error| Failure::from_io(what, &error));
            }
            Sink::Volume(volume) => volume.finish()?,
        }
        Ok(None)
    }
}

/// Standard output, or another pipe or character device.
pub struct PipeSink {
    output: Box<dyn Write>,
    name: String,
}

impl PipeSink {
    fn open(path: &Path) -> Result<PipeSink, Failure> {
        let file = OpenOptions::new().write(true).open(path);
        let file = file.map_err(|error| open_failure(path, &error))?;
        Ok(PipeSink { output: Box::new(file), name: path.display().to_string() })
    }

    fn put(&mut self, chunk: &Chunk) -> io::Result<()> {
        match chunk {
            Chunk::Data(buffer) => self.output.write_all(buffer.as_slice().unwrap_or_default()),
            Chunk::Zeros(length) => for_zeros(*length, |zeros| self.output.write_all(zeros)),
        }
    }

    fn failure(&self, error: &io::Error) -> Failure {
        Failure::from_io(format!("cannot write to {}", self.name), error)
    }
}

fn for_zeros(mut length: u64, mut write: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    while length > 0 {
        let now = length.min(ZEROS.len() as u64);
        write(&ZEROS[..now as usize])?;
        length -= now;
    }
    Ok(())
}

/// A regular file, in which zeros become holes, or a block device.
pub struct FileSink {
    file: File,
    path: PathBuf,
    offset: u64,
    capacity: Option<u64>,
    /// `None` for a block device.
    partial: Option<Partial>,
}

impl FileSink {
    fn open(path: &Path, capacity: Option<u64>, length: Option<u64>) -> Result<FileSink, Failure> {
        let (partial, file) = match is_block_device(path) {
            true => {
                let exclusive = OFlags::EXCL.bits().cast_signed();
                let opened = OpenOptions::new().write(true).custom_flags(exclusive).open(path);
                (None, opened.map_err(|error| open_failure(path, &error))?)
            }
            false => {
                let (partial, file) = Partial::create(path)?;
                file.set_len(length.unwrap_or(0)).map_err(|error| open_failure(path, &error))?;
                (Some(partial), file)
            }
        };
        Ok(FileSink { file, path: path.to_owned(), offset: 0, capacity, partial })
    }

    fn put(&mut self, chunk: &Chunk) -> io::Result<()> {
        let end = self.offset + chunk.length();
        if self.capacity.is_some_and(|capacity| end > capacity) {
            return Err(io::Error::other("the device is too small for the source"));
        }
        match chunk {
            Chunk::Data(buffer) => self.put_data(buffer.as_slice().unwrap_or_default())?,
            Chunk::Zeros(length) if self.partial.is_none() => self.put_zeros(*length)?,
            Chunk::Zeros(_) => {}
        }
        self.offset = end;
        Ok(())
    }

    /// Writes data outside of holes.
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

    fn put_zeros(&self, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        if fallocate(&self.file, flags, self.offset, length).is_ok() {
            return Ok(());
        }
        let mut offset = self.offset;
        for_zeros(length, |zeros| {
            self.file.write_all_at(zeros, offset)?;
            offset += zeros.len() as u64;
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

/// Written data, for the message after an interruption.
#[derive(Default)]
struct Written {
    bytes: AtomicU64,
    complete: AtomicBool,
}

impl Written {
    fn describe(&self, name: &str) -> String {
        let bytes = self.bytes.load(Ordering::Relaxed);
        match self.complete.load(Ordering::Acquire) {
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
        VolumeSink {
            client,
            block_bytes,
            blocks,
            lba: 0,
            in_flight: HashMap::new(),
            written,
            completions: Vec::new(),
        }
    }

    fn put(&mut self, chunk: Chunk) -> Result<(), Failure> {
        let length = chunk.length();
        let blocks = length / self.block_bytes;
        self.check(length, blocks)?;
        while self.in_flight.len() >= WINDOW {
            self.turn()?;
        }
        let request = match chunk {
            Chunk::Data(buffer) => Request::Write { lba: self.lba, buffer, fua: false },
            Chunk::Zeros(_) => Request::WriteZeroes {
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
                _ => Failure::new(
                    format!("cannot write {length} bytes to the volume at offset {offset}"),
                    error,
                ),
            })?;
            self.written.bytes.fetch_add(length, Ordering::Relaxed);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.drain()?;
        self.submit(Request::Flush, 0);
        self.drain()?;
        self.written.complete.store(true, Ordering::Release);
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
