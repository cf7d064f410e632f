//! Destination of a copy: chunks in ascending order, durable at the end.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use isolane_host::{BlockRange, Client, Completion, Request, Wait};
use rustix::fs::{FallocateFlags, OFlags, fallocate};

use super::endpoint::{Endpoint, EndpointInfo, is_block_device, is_stream};
use super::partial::{Partial, open_failure};
use super::source::{Chunk, WINDOW, is_zero};
use crate::failure::{Context, Failure, IoContext};
use crate::signals;

/// Minimum size of a hole in a file.
const HOLE_BYTES: usize = 4096;

/// Zeros to write without a cheaper operation.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Destination of a copy.
pub enum Sink {
    /// A file, a device, or a pipe.
    File(FileSink),
    /// A volume.
    Volume(Box<VolumeSink>),
}

impl Sink {
    /// Opens an endpoint for writing. A regular file stays unchanged until the new one is published.
    pub fn open(endpoint: &Endpoint, info: EndpointInfo, length: Option<u64>) -> Result<Sink, Failure> {
        match (endpoint, info.client) {
            (Endpoint::File(path), _) => FileSink::open(path, info.capacity, length).map(Sink::File),
            (Endpoint::Volume(_), Some(client)) => {
                let sink = VolumeSink::new(client);
                let (written, name) = (Arc::clone(&sink.written), endpoint.to_string());
                signals::report_on_signal(move || Some(written.describe(&name)))?;
                Ok(Sink::Volume(Box::new(sink)))
            }
            _ => FileSink::standard_output().map(Sink::File),
        }
    }

    /// Writes the next chunk.
    pub fn put(&mut self, chunk: Chunk) -> Result<(), Failure> {
        match self {
            Sink::File(file) => file.put(&chunk).io_context(format_args!("cannot write {}", file.name)),
            Sink::Volume(volume) => volume.put(chunk),
        }
    }

    /// Makes all data durable. Returns a regular file for publication.
    pub fn finish(self, length: u64) -> Result<Option<Partial>, Failure> {
        match self {
            Sink::File(file) => {
                let what = format!("cannot make {} durable", file.name);
                file.finish(length).io_context(what)
            }
            Sink::Volume(volume) => volume.finish().map(|()| None),
        }
    }
}

/// A regular file, in which zeros become holes, a block device, or a stream.
pub struct FileSink {
    file: File,
    kind: FileKind,
    name: String,
    offset: u64,
    capacity: Option<u64>,
}

enum FileKind {
    /// Standard output, or another pipe or character device.
    Stream,
    Device,
    Regular(Partial),
}

impl FileSink {
    fn standard_output() -> Result<FileSink, Failure> {
        let name = "to standard output".to_owned();
        let file = io::stdout().as_fd().try_clone_to_owned().context(format_args!("cannot write {name}"))?;
        Ok(FileSink { file: file.into(), kind: FileKind::Stream, name, offset: 0, capacity: None })
    }

    fn open(path: &Path, capacity: Option<u64>, length: Option<u64>) -> Result<FileSink, Failure> {
        let mut name = path.display().to_string();
        let opened = |flags: OFlags| {
            let flags = flags.bits().cast_signed();
            let file = OpenOptions::new().write(true).custom_flags(flags).open(path);
            file.map_err(|error| open_failure(path, &error))
        };
        let (kind, file) = if is_stream(path) {
            name = format!("to {name}");
            (FileKind::Stream, opened(OFlags::empty())?)
        } else if is_block_device(path) {
            (FileKind::Device, opened(OFlags::EXCL)?)
        } else {
            let (partial, file) = Partial::create(path)?;
            file.set_len(length.unwrap_or(0)).map_err(|error| open_failure(path, &error))?;
            (FileKind::Regular(partial), file)
        };
        Ok(FileSink { file, kind, name, offset: 0, capacity })
    }

    fn put(&mut self, chunk: &Chunk) -> io::Result<()> {
        let end = self.offset + chunk.length();
        if self.capacity.is_some_and(|capacity| end > capacity) {
            return Err(io::Error::other("the device is too small for the source"));
        }
        match (chunk, &self.kind) {
            (Chunk::Data(buffer), FileKind::Regular(_)) => {
                self.put_around_holes(buffer.as_slice().unwrap_or_default())?;
            }
            (Chunk::Data(buffer), _) => self.write(buffer.as_slice().unwrap_or_default(), self.offset)?,
            (Chunk::Zeros(_), FileKind::Regular(_)) => {}
            (Chunk::Zeros(length), _) => self.put_zeros(*length)?,
        }
        self.offset = end;
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self.kind {
            FileKind::Stream => (&self.file).write_all(bytes),
            _ => self.file.write_all_at(bytes, offset),
        }
    }

    /// Writes data outside of holes.
    fn put_around_holes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut offset = self.offset;
        for run in bytes.chunks(HOLE_BYTES).collect::<Vec<_>>().chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            let length: usize = run.iter().map(|chunk| chunk.len()).sum();
            if !is_zero(run[0]) {
                let start = (offset - self.offset) as usize;
                self.write(&bytes[start..start + length], offset)?;
            }
            offset += length as u64;
        }
        Ok(())
    }

    fn put_zeros(&self, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        if matches!(self.kind, FileKind::Device) && fallocate(&self.file, flags, self.offset, length).is_ok()
        {
            return Ok(());
        }
        for at in (0..length).step_by(ZEROS.len()) {
            let now = (length - at).min(ZEROS.len() as u64);
            self.write(&ZEROS[..now as usize], self.offset + at)?;
        }
        Ok(())
    }

    fn finish(self, length: u64) -> io::Result<Option<Partial>> {
        match self.kind {
            FileKind::Stream => Ok(None),
            FileKind::Device => self.file.sync_all().map(|()| None),
            FileKind::Regular(partial) => {
                self.file.set_len(length)?;
                self.file.sync_all().map(|()| Some(partial))
            }
        }
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
        if self.complete.load(Ordering::Acquire) {
            format!("all {bytes} bytes were written to {name}, but not all of them were verified")
        } else {
            format!("{bytes} bytes were written to {name}, which holds only part of the source")
        }
    }
}

/// A volume, with a window of writes in flight.
pub struct VolumeSink {
    client: Client,
    block_bytes: u64,
    lba: u64,
    /// Sizes of writes in bytes, by their first blocks.
    in_flight: HashMap<u64, u64>,
    written: Arc<Written>,
    completions: Vec<Completion>,
}

impl VolumeSink {
    fn new(client: Client) -> VolumeSink {
        let block_bytes = u64::from(client.namespace().block_bytes);
        let (in_flight, written, completions) = (HashMap::new(), Arc::default(), Vec::new());
        VolumeSink { client, block_bytes, lba: 0, in_flight, written, completions }
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
        let capacity = self.client.namespace().blocks;
        if self.lba + blocks > capacity {
            return Err(Failure::new(what, format!("the source is larger than its {capacity} blocks"))
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
