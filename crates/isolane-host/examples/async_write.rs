//! Overwrites the first 1 MiB of a volume, flushes it, and reads it back. Any executor runs the futures; this
//! example uses the one of `pollster`.
//!
//! ```console
//! $ cargo run -p isolane-host --example async_write -- nvme+tcp://127.0.0.1:4420
//! ```

use isolane_host::{Buffer, Error, Options, Volume};

const PIECE_BYTES: usize = 64 * 1024;
const PIECES: u64 = 16;

fn main() -> Result<(), Error> {
    let uri = std::env::args().nth(1).unwrap_or_default().parse()?;
    pollster::block_on(async {
        let volume = Volume::connect(&uri, Options::default()).await?;
        // All writes are in flight together.
        let offsets = (0..PIECES).map(|piece| piece * PIECE_BYTES as u64);
        let writes: Vec<_> = offsets
            .map(|offset| (offset, volume.write(offset, Buffer::from(vec![offset as u8; PIECE_BYTES]))))
            .collect();
        let mut written = Vec::new();
        for (offset, write) in writes {
            written.push((offset, write.await?));
        }
        volume.flush().await?;
        for (offset, buffer) in written {
            let expected = buffer.to_vec();
            assert_eq!(volume.read(offset, buffer).await?.to_vec(), expected);
        }
        println!("{volume:?}: {} bytes written, flushed and verified", PIECES * PIECE_BYTES as u64);
        volume.close().await;
        Ok(())
    })
}
