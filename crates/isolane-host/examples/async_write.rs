//! Overwrites the first 1 MiB of a volume, flushes it, and reads it back. Any executor runs the futures; this
//! example brings the smallest one that works.
//!
//! ```console
//! $ cargo run -p isolane-host --example async_write -- nvme+tcp://127.0.0.1:4420
//! ```

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use isolane_host::{Buffer, Error, Options, Volume};

const PIECE_BYTES: usize = 64 * 1024;
const PIECES: u64 = 16;

fn main() -> Result<(), Error> {
    let uri = std::env::args().nth(1).unwrap_or_default().parse()?;
    block_on(async {
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

/// Runs one future in the calling thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
