//! Source of a copy: chunks in ascending order, holes as zeros.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use isolane_host::{Client, Completion, Options, Request, Wait};
use isolane_memory::Buffer;
use rustix::fs::{SeekFrom as HoleSeek, seek};
use rustix::io::Errno;

use super::endpoint::{Endpoint, is_stream};
use crate::failure::{Context, Failure, IoContext};
use crate::host_args;

/// Maximum size of a chunk of data.
pub const CHUNK_BYTES: u64 = 256 << 10;

/// Maximum number of requests in flight to a volume.
pub const WINDOW: usize = 32;

/// Alignment of holes in bytes, unless the blocks of the destination are larger.
const HOLE_ALIGNMENT: u64 = 4096;

/// A part of a stream.
pub enum Chunk {
    /// Data.
    Data(Buffer),
    /// A number of zeros.
    Zeros(u64),
}

impl Chunk {
    /// Returns the size in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Chunk::Data(buffer) => buffer.len() as u64,
            Chunk::Zeros(length) => *length,
        }
    }

    /// Appends zeros up to a whole block.
    pub fn padded(self, block_bytes: u64) -> Chunk {
        let length = self.length().next_multiple_of(block_bytes);
        match self {
            Chunk::Data(data) if data.len() as u64 != length => {
                let mut buffer = Buffer::contiguous(length as usize);
                buffer.copy_in(0, data.as_slice().unwrap_or_default());
                Chunk::Data(buffer)
            }
            Chunk::Data(data) => Chunk::Data(data),
            Chunk::Zeros(_) => Chunk::Zeros(length),
        }
    }

    /// Returns `Zeros` if all bytes are zero.
    fn new(buffer: Buffer) -> Chunk {
        let is_zero = buffer.as_slice().is_some_and(is_zero);
        if is_zero { Chunk::Zeros(buffer.len() as u64) } else { Chunk::Data(buffer) }
    }
}

/// Returns `true` if all bytes are zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    let (words, tail) = bytes.as_chunks::<16>();
    tail.iter().all(|&byte| byte == 0) && words.iter().all(|word| u128::from_ne_bytes(*word) == 0)
}

/// Source of a copy.
pub enum Source {
    /// A file, a device, or a pipe.
    File(FileSource),
    /// A volume.
    Volume(Box<VolumeSource>),
}

impl Source {
    /// Opens an endpoint for reading.
    pub fn open(endpoint: &Endpoint, options: Options) -> Result<Source, Failure> {
        match endpoint {
            Endpoint::Pipe => FileSource::standard_input().map(Source::File),
            Endpoint::File(path) => FileSource::open(path).map(Source::File),
            Endpoint::Volume(uri) => {
                Ok(Source::Volume(Box::new(VolumeSource::new(host_args::connect(uri, options)?))))
            }
        }
    }

    /// Returns the size of the complete stream, if known.
    pub fn length(&self) -> Option<u64> {
        match self {
            Source::File(file) => (!file.is_stream).then_some(file.length),
            Source::Volume(volume) => Some(volume.length),
        }
    }

    /// Makes every chunk except the last one consist of whole blocks of `block_bytes`, up to 64 KiB.
    pub fn align_to(&mut self, block_bytes: u64) {
        if let Source::File(file) = self {
            file.hole_alignment = file.hole_alignment.max(block_bytes);
        }
    }

    /// Limits the stream to its first `bytes`.
    pub fn limit(&mut self, bytes: u64) {
        let length = match self {
            Source::File(file) => &mut file.length,
            Source::Volume(volume) => &mut volume.length,
        };
        *length = bytes.min(*length);
    }

    /// Returns the next chunk, or `None` at the end.
    pub fn next(&mut self) -> Result<Option<Chunk>, Failure> {
        match self {
            Source::File(file) if file.is_stream => {
                file.next_of_stream().context(format_args!("cannot read {}", file.name))
            }
            Source::File(file) => file.next(),
            Source::Volume(volume) => volume.next(),
        }
    }
}

/// A file or block device, whose holes are found if it reports them, or a stream: a pipe or character device.
pub struct FileSource {
    file: File,
    name: String,
    is_stream: bool,
    offset: u64,
    /// For a stream, the maximum until its end.
    length: u64,
    data_until: u64,
    /// Alignment of holes, so that no chunk splits a logical block.
    hole_alignment: u64,
}

impl FileSource {
    fn standard_input() -> Result<FileSource, Failure> {
        let name = "standard input";
        let file = io::stdin().as_fd().try_clone_to_owned().context(format_args!("cannot read {name}"))?;
        Ok(FileSource::new(file.into(), name.into(), true, u64::MAX))
    }

    fn open(path: &Path) -> Result<FileSource, Failure> {
        let what = || format!("cannot open {}", path.display());
        let name = path.display().to_string();
        let mut file = File::open(path).io_context(what())?;
        if is_stream(path) {
            return Ok(FileSource::new(file, name, true, u64::MAX));
        }
        if file.metadata().is_ok_and(|metadata| metadata.is_dir()) {
            return Err(Failure::new(what(), "it is a directory").with_hint("name a file"));
        }
        let length = file.seek(SeekFrom::End(0)).context(what())?;
        Ok(FileSource::new(file, name, false, length))
    }

    fn new(file: File, name: String, is_stream: bool, length: u64) -> FileSource {
        FileSource { file, name, is_stream, offset: 0, length, data_until: 0, hole_alignment: HOLE_ALIGNMENT }
    }

    fn next_of_stream(&mut self) -> io::Result<Option<Chunk>> {
        let mut bytes = Vec::new();
        let requested = CHUNK_BYTES.min(self.length - self.offset);
        (&self.file).take(requested).read_to_end(&mut bytes)?;
        self.offset += bytes.len() as u64;
        if (bytes.len() as u64) < requested {
            // A terminal may continue after its end of file.
            self.length = self.offset;
        }
        Ok((!bytes.is_empty()).then(|| Chunk::new(Buffer::from(bytes))))
    }

    fn next(&mut self) -> Result<Option<Chunk>, Failure> {
        if self.offset >= self.length {
            return Ok(None);
        }
        if self.offset >= self.data_until {
            let hole = self.find_data().context(format_args!("cannot find holes in {}", self.name))?;
            if hole > 0 {
                self.offset += hole;
                return Ok(Some(Chunk::Zeros(hole)));
            }
        }
        let length = CHUNK_BYTES.min(self.data_until - self.offset);
        let mut buffer = Buffer::contiguous(length as usize);
        let bytes = buffer.as_mut_slice().unwrap_or_default();
        let what = || format!("cannot read {} at offset {}", self.name, self.offset);
        match self.file.read_exact_at(bytes, self.offset) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(Failure::new(what(), "the file was truncated during the copy"));
            }
            result => result.context(what())?,
        }
        self.offset += length;
        Ok(Some(Chunk::new(buffer)))
    }

    /// Returns the size of the hole at the current offset, or 0 after it has found the end of the data.
    fn find_data(&mut self) -> io::Result<u64> {
        let found = match seek(&self.file, HoleSeek::Data(self.offset)) {
            Ok(data) => data,
            Err(Errno::NXIO) => self.length,
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOTTY) => {
                self.data_until = self.length;
                return Ok(0);
            }
            Err(error) => return Err(error.into()),
        };
        let data = if found < self.length {
            (found - found % self.hole_alignment).max(self.offset)
        } else {
            self.length
        };
        if data == self.offset {
            let hole = seek(&self.file, HoleSeek::Hole(found))?;
            self.data_until = hole.next_multiple_of(self.hole_alignment).min(self.length);
        }
        Ok(data - self.offset)
    }
}

/// A volume, with a window of reads in flight.
pub struct VolumeSource {
    client: Client,
    length: u64,
    block_bytes: u64,
    requested: u64,
    window: VecDeque<Option<Buffer>>,
    first_tag: u64,
    completions: Vec<Completion>,
}

impl VolumeSource {
    /// Returns the connection.
    pub fn client(&self) -> &Client {
        &self.client
    }

    fn new(client: Client) -> VolumeSource {
        let block_bytes = u64::from(client.namespace().block_bytes);
        let length = client.namespace().blocks * block_bytes;
        let (window, completions) = (VecDeque::new(), Vec::new());
        VolumeSource { client, length, block_bytes, requested: 0, window, first_tag: 0, completions }
    }

    fn next(&mut self) -> Result<Option<Chunk>, Failure> {
        while self.window.len() < WINDOW && self.requested < self.length {
            let length = CHUNK_BYTES.min(self.length - self.requested);
            let buffer = Buffer::contiguous(length as usize);
            let request = Request::Read { lba: self.requested / self.block_bytes, buffer };
            // The tag is the index of the chunk.
            self.client.submit(0, request, self.first_tag + self.window.len() as u64);
            self.window.push_back(None);
            self.requested += length;
        }
        while matches!(self.window.front(), Some(None)) {
            self.client.turn(&mut self.completions, Wait::Forever);
            self.collect()?;
        }
        self.first_tag += 1;
        Ok(self.window.pop_front().flatten().map(Chunk::new))
    }

    fn collect(&mut self) -> Result<(), Failure> {
        for completion in self.completions.drain(..) {
            let offset = completion.tag * CHUNK_BYTES;
            completion.result.context(format_args!("cannot read the volume at offset {offset}"))?;
            if let Some(slot) = self.window.get_mut((completion.tag - self.first_tag) as usize) {
                *slot = completion.buffer;
            }
        }
        Ok(())
    }
}
