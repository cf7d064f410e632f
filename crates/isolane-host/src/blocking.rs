//! Volume for blocking calls on borrowed memory.
//!
//! Several threads may share one. For many requests at a time from one thread, use
//! [`BlockingVolume::submitter`], [`Volume`], or [`Client`](crate::Client).
//!
//! Invariant: no call returns, not even by a panic, while the client still refers to its memory.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use isolane_memory::Buffer;
use isolane_observe::observable::{Observable, SnapshotSource};
use isolane_observe::snapshot::Snapshot;
use pollster::block_on;

use crate::error::{ConnectError, RequestError};
use crate::info::{ConnectionStatus, EngineStatus, Info, NamespaceInfo};
use crate::lane_class::LaneClass;
use crate::options::Options;
use crate::request::Request;
use crate::submitter::Submitter;
use crate::uri::Uri;
use crate::volume::Volume;

/// A remote volume, used by blocking calls.
///
/// ```no_run
/// use isolane_host::{BlockingVolume, Options};
///
/// # fn main() -> Result<(), isolane_host::Error> {
/// let uri = "nvme+tcp://127.0.0.1:4420".parse()?;
/// let volume = BlockingVolume::connect(&uri, Options::default())?;
/// let mut block = vec![0; volume.block_size() as usize];
/// volume.read_at(&mut block, 0)?;
/// block[0] ^= 1;
/// volume.write_at(&block, 0)?;
/// volume.flush()?;
/// volume.close();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BlockingVolume {
    volume: Volume,
}

impl BlockingVolume {
    /// Connects.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(uri: &Uri, options: Options) -> Result<BlockingVolume, ConnectError> {
        Ok(BlockingVolume { volume: block_on(Volume::connect(uri, options))? })
    }

    /// Returns a handle that submits to a class of lanes; see [`Volume::with_class`].
    pub fn with_class(&self, class: LaneClass) -> BlockingVolume {
        BlockingVolume { volume: self.volume.with_class(class) }
    }

    /// Returns a submitter for up to `depth` requests at a time; see [`Volume::submitter`].
    pub fn submitter(&self, depth: usize) -> Submitter {
        self.volume.submitter(depth)
    }

    /// Description of the target, as of the first connection.
    pub fn info(&self) -> &Info {
        self.volume.info()
    }

    /// The namespace of the volume.
    pub fn namespace(&self) -> &NamespaceInfo {
        self.volume.namespace()
    }

    /// Status of every connection; see [`Volume::connections`].
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        block_on(self.volume.connections())
    }

    /// The engine that has the volume; see [`Volume::engine`].
    pub fn engine(&self) -> Option<EngineStatus> {
        block_on(self.volume.engine())
    }

    /// Returns the latencies of the requests so far; see [`Volume::snapshot`].
    pub fn snapshot(&self) -> Snapshot {
        self.volume.snapshot()
    }

    /// Returns the size of the volume in bytes.
    pub fn size(&self) -> u64 {
        self.volume.size()
    }

    /// Returns the size of a logical block in bytes; offsets and lengths are multiples of it.
    pub fn block_size(&self) -> u32 {
        self.volume.block_size()
    }

    /// Fills `bytes` from the volume.
    ///
    /// # Errors
    /// [`RequestError`]; `bytes` may then contain part of the data.
    pub fn read_at(&self, bytes: &mut [u8], offset_bytes: u64) -> Result<(), RequestError> {
        let (lba, len) = (self.volume.lba(offset_bytes)?, bytes.len());
        let guard = Abort;
        // SAFETY: `bytes` is borrowed exclusively, and not accessed until `run` has dropped the buffer. A panic
        // in it aborts the process instead of unwinding past the borrow.
        let buffer = unsafe { Buffer::from_raw_parts(NonNull::from(bytes).cast(), len) };
        let result = self.volume.run(Request::Read { lba, buffer });
        std::mem::forget(guard);
        result
    }

    /// Writes `bytes`. They are durable after a later [`BlockingVolume::flush`].
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn write_at(&self, bytes: &[u8], offset_bytes: u64) -> Result<(), RequestError> {
        self.write_with(bytes, offset_bytes, false)
    }

    /// Writes `bytes` and makes them durable (Force Unit Access).
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn write_durable_at(&self, bytes: &[u8], offset_bytes: u64) -> Result<(), RequestError> {
        self.write_with(bytes, offset_bytes, true)
    }

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn flush(&self) -> Result<(), RequestError> {
        self.volume.run(Request::Flush)
    }

    /// Zeroes a range without sending zeroes.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), RequestError> {
        let range = self.volume.range(offset_bytes, len_bytes)?;
        self.volume.run(Request::WriteZeroes { range, fua: false, deallocate: true })
    }

    /// Deallocates a range, whose content is no longer needed.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn deallocate(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), RequestError> {
        self.volume.run(self.volume.deallocation(offset_bytes, len_bytes)?)
    }

    /// Completes requests in flight and shuts the controller down.
    pub fn close(self) {
        block_on(self.volume.close());
    }

    fn write_with(&self, bytes: &[u8], offset_bytes: u64, fua: bool) -> Result<(), RequestError> {
        let lba = self.volume.lba(offset_bytes)?;
        let guard = Abort;
        // SAFETY: `bytes` is borrowed, so no thread writes it until `run` has dropped the buffer; the client
        // only reads the buffer of a write. A panic in it aborts the process instead of unwinding past the
        // borrow.
        let buffer = unsafe { Buffer::from_raw_parts(NonNull::from(bytes).cast(), bytes.len()) };
        let result = self.volume.run(Request::Write { lba, buffer, fua });
        std::mem::forget(guard);
        result
    }
}

impl Observable for BlockingVolume {
    fn source(&self) -> Arc<dyn SnapshotSource> {
        self.volume.source()
    }
}

/// Aborts the process when dropped: unwinding would free memory that the client may still fill.
struct Abort;

impl Drop for Abort {
    fn drop(&mut self) {
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Fault, Script, Target};

    #[test]
    fn reads_into_and_writes_from_borrowed_memory() {
        let target = Target::start(Script::default());
        let volume = BlockingVolume::connect(&target.uri(), Options::default()).unwrap();
        let written: Vec<u8> = (0..100_352).map(|index| (index / 512) as u8).collect();
        volume.write_at(&written, 1024).unwrap();
        let mut read = vec![0; written.len()];
        volume.read_at(&mut read, 1024).unwrap();
        assert_eq!(read, written);
        volume.write_durable_at(&written[..512], 0).unwrap();
        volume.write_zeroes(1024, 512).unwrap();
        volume.deallocate(0, 512).unwrap();
        volume.flush().unwrap();
        volume.read_at(&mut read[..1024], 1024).unwrap();
        assert_eq!(read[..512], [0; 512]);
        volume.close();
    }

    #[test]
    fn reports_size_and_location() {
        let target = Target::start(Script::default());
        let volume = BlockingVolume::connect(&target.uri(), Options::default()).unwrap();
        assert_eq!((volume.size(), volume.block_size()), (4 << 20, 512));
        let shown = format!("{volume:?}");
        assert!(shown.contains(&target.address.to_string()) && shown.contains("nsid: 1"), "{shown}");
    }

    #[test]
    fn threads_share_volume() {
        let target = Target::start(Script::default());
        let volume =
            BlockingVolume::connect(&target.uri(), Options { lanes: 2, ..Options::default() }).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let volume = &volume;
                scope.spawn(move || {
                    let at = u64::from(thread) * 65_536;
                    for round in 0..50 {
                        let mut bytes = vec![thread ^ round; 4096];
                        volume.write_at(&bytes, at).unwrap();
                        bytes.fill(0xee);
                        volume.read_at(&mut bytes, at).unwrap();
                        assert_eq!(bytes, vec![thread ^ round; 4096]);
                    }
                });
            }
        });
    }

    #[test]
    fn call_survives_connection_loss() {
        let target = Target::start(Script::default());
        let volume = BlockingVolume::connect(&target.uri(), Options::default()).unwrap();
        volume.write_at(&[5; 8192], 0).unwrap();
        target.inject(0, Fault::CloseMidway);
        let mut bytes = [0; 8192];
        volume.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [5; 8192]);
    }

    #[test]
    fn rejects_partial_blocks() {
        let target = Target::start(Script::default());
        let volume = BlockingVolume::connect(&target.uri(), Options::default()).unwrap();
        assert!(matches!(volume.read_at(&mut [0; 100], 0), Err(RequestError::Unaligned { .. })));
        assert!(matches!(volume.write_at(&[0; 512], 1), Err(RequestError::Unaligned { .. })));
        assert!(matches!(volume.write_at(&[], 0), Err(RequestError::Buffer(_))));
    }
}
