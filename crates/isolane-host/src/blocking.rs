//! A volume for callers that wait, on memory that they keep.
//!
//! Each call hands its borrowed memory to the lane and returns when it has it back. Not for many requests at
//! a time from one thread: that is what [`BlockingVolume::submitter`], [`Volume`] and
//! [`Client`](crate::Client) are for; several threads may share one. Invariant: no call returns while the
//! lane still refers to its memory.

use crate::attached::EngineStatus;
use crate::classes::Class;
use crate::client::ConnectionStatus;
use crate::error::{ConnectError, RequestError};
use crate::info::{Info, NamespaceInfo};
use crate::lent;
use crate::oneshot::block_on;
use crate::options::Options;
use crate::request::{Completion, Request};
use crate::submitter::Submitter;
use crate::uri::Uri;
use crate::volume::Volume;

/// A volume at the other end of a connection, one call at a time.
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
    /// Why there is no connection, and what to do.
    pub fn connect(uri: &Uri, options: Options) -> Result<BlockingVolume, ConnectError> {
        Ok(BlockingVolume { volume: block_on(Volume::connect(uri, options))? })
    }

    /// The same volume, whose requests all ask for a class of lanes; see [`Volume::of_class`].
    pub fn of_class(&self, class: Class) -> BlockingVolume {
        BlockingVolume { volume: self.volume.of_class(class) }
    }

    /// A place for one thread that keeps up to `depth` requests on their way; see [`Volume::submitter`].
    pub fn submitter(&self, depth: usize) -> Submitter {
        self.volume.submitter(depth)
    }

    /// What the target told when the connection was made.
    pub fn info(&self) -> &Info {
        self.volume.info()
    }

    /// The namespace this is.
    pub fn namespace(&self) -> &NamespaceInfo {
        self.volume.namespace()
    }

    /// Where each of its connections is; see [`Volume::connections`].
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        block_on(self.volume.connections())
    }

    /// At which engine it is; see [`Volume::engine`].
    pub fn engine(&self) -> Option<EngineStatus> {
        block_on(self.volume.engine())
    }

    /// Returns the size of the volume in bytes.
    pub fn size(&self) -> u64 {
        self.volume.size()
    }

    /// Returns the size of a logical block in bytes; offsets and lengths are multiples of it.
    pub fn block_size(&self) -> u32 {
        self.volume.block_size()
    }

    /// Bytes in a logical block: offsets and lengths are multiples of it.
    pub fn block_bytes(&self) -> u32 {
        self.volume.block_bytes()
    }

    /// Size of the volume in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.volume.len_bytes()
    }

    /// Fills `bytes` from the volume.
    ///
    /// # Errors
    /// Why the request failed; `bytes` may then hold a part of what was read.
    pub fn read_at(&self, bytes: &mut [u8], offset_bytes: u64) -> Result<(), RequestError> {
        let lba = self.volume.lba(offset_bytes)?;
        lent::lend_mut(bytes, |buffer| self.run(Request::Read { lba, buffer }))
    }

    /// Writes `bytes`. They are durable after a later [`BlockingVolume::flush`].
    ///
    /// # Errors
    /// Why the request failed.
    pub fn write_at(&self, bytes: &[u8], offset_bytes: u64) -> Result<(), RequestError> {
        self.write_with(bytes, offset_bytes, false)
    }

    /// Writes `bytes` and makes them durable (Force Unit Access).
    ///
    /// # Errors
    /// Why the request failed.
    pub fn write_durable_at(&self, bytes: &[u8], offset_bytes: u64) -> Result<(), RequestError> {
        self.write_with(bytes, offset_bytes, true)
    }

    /// Makes every write that completed before durable.
    ///
    /// # Errors
    /// Why the request failed.
    pub fn flush(&self) -> Result<(), RequestError> {
        self.run(Request::Flush)
    }

    /// Zeroes a range without sending zeroes.
    ///
    /// # Errors
    /// Why the request failed.
    pub fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), RequestError> {
        let range = self.volume.range(offset_bytes, len_bytes)?;
        self.run(Request::WriteZeroes { range, fua: false, deallocate: true })
    }

    /// Tells that a range's content is no longer needed.
    ///
    /// # Errors
    /// Why the request failed.
    pub fn deallocate(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), RequestError> {
        self.run(self.volume.deallocation(offset_bytes, len_bytes)?)
    }

    /// Ends the connection in order.
    pub fn close(self) {
        block_on(self.volume.close());
    }

    fn write_with(&self, bytes: &[u8], offset_bytes: u64, fua: bool) -> Result<(), RequestError> {
        let lba = self.volume.lba(offset_bytes)?;
        lent::lend(bytes, |buffer| self.run(Request::Write { lba, buffer, fua }))
    }

    /// Waits, and drops the buffer: nothing refers to the caller's memory afterwards.
    fn run(&self, request: Request) -> Result<(), RequestError> {
        let Completion { result, buffer, .. } = self.volume.run(request);
        drop(buffer);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Misdeed, Script, Target};

    #[test]
    fn borrowed_memory_is_read_into_and_written_from() {
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
    fn tells_its_size_and_shows_where_it_is() {
        let target = Target::start(Script::default());
        let volume = BlockingVolume::connect(&target.uri(), Options::default()).unwrap();
        assert_eq!((volume.size(), volume.block_size()), (4 << 20, 512));
        let shown = format!("{volume:?}");
        assert!(shown.contains(&target.address.to_string()) && shown.contains("nsid: 1"), "{shown}");
    }

    #[test]
    fn several_threads_share_one_volume() {
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
    fn a_loss_does_not_end_a_call_before_its_memory_is_back() {
        let target = Target::start(Script::default());
        let volume = BlockingVolume::connect(&target.uri(), Options::default()).unwrap();
        volume.write_at(&[5; 8192], 0).unwrap();
        target.set_misdeed(0, Misdeed::CloseMidway);
        let mut bytes = [0; 8192];
        volume.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [5; 8192]);
    }

    #[test]
    fn what_is_not_whole_blocks_is_refused() {
        let target = Target::start(Script::default());
        let volume = BlockingVolume::connect(&target.uri(), Options::default()).unwrap();
        assert!(matches!(volume.read_at(&mut [0; 100], 0), Err(RequestError::Unaligned { .. })));
        assert!(matches!(volume.write_at(&[0; 512], 1), Err(RequestError::Unaligned { .. })));
        assert!(matches!(volume.write_at(&[], 0), Err(RequestError::Buffer(_))));
    }
}
