//! Client helpers of tests.

use std::time::{Duration, Instant};

use isolane_host::{Buffer, Client, Completion, Mode, Options, Request, Wait};

pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Options with deep lanes that do not spin.
pub fn options() -> Options {
    Options { mode: Mode::Sleep, depth: 32, ..Options::default() }
}

/// Blocks that contain their address.
pub fn pattern(lba: u64, bytes: usize, salt: u8) -> Buffer {
    let mut buffer = Buffer::contiguous(bytes);
    for (index, block) in buffer.as_mut_slice().unwrap().chunks_mut(512).enumerate() {
        block.fill(salt ^ (lba + index as u64) as u8);
        block[..8].copy_from_slice(&(lba + index as u64).to_le_bytes());
    }
    buffer
}

/// Waits for `count` completions.
pub fn wait_for(client: &mut Client, count: usize) -> Vec<Completion> {
    let deadline = Instant::now() + TEST_TIMEOUT;
    let mut completions = Vec::new();
    while completions.len() < count {
        client.turn(&mut completions, Wait::Until(deadline));
        assert!(Instant::now() < deadline, "{} of {count} completions", completions.len());
    }
    completions
}

/// Runs one request.
pub fn run(client: &mut Client, request: Request) -> Completion {
    client.submit(0, request, 0);
    wait_for(client, 1).remove(0)
}

/// Writes patterns of many sizes and reads them back.
pub fn write_and_verify(client: &mut Client, lanes: usize) {
    let sizes = [512, 4096, 8192, 16_384, 20_480, 65_536, 1 << 20, (2 << 20) + 512];
    let mut ranges = Vec::new();
    let mut lba = 1;
    for bytes in sizes.into_iter().cycle().take(40) {
        ranges.push((lba, bytes));
        lba += bytes as u64 / 512 + 3;
    }
    for (tag, &(lba, bytes)) in ranges.iter().enumerate() {
        let request = Request::Write { lba, buffer: pattern(lba, bytes, 0x5a), fua: tag % 7 == 0 };
        client.submit(tag % lanes, request, tag as u64);
    }
    for completion in wait_for(client, ranges.len()) {
        assert!(completion.result.is_ok(), "{completion:?}");
    }
    for (tag, &(lba, bytes)) in ranges.iter().enumerate() {
        client.submit(
            (tag + 1) % lanes,
            Request::Read { lba, buffer: Buffer::contiguous(bytes) },
            tag as u64,
        );
    }
    for completion in wait_for(client, ranges.len()) {
        assert!(completion.result.is_ok(), "{completion:?}");
        let (lba, bytes) = ranges[completion.tag as usize];
        assert!(
            completion.buffer.unwrap().to_vec() == pattern(lba, bytes, 0x5a).to_vec(),
            "{bytes} bytes at {lba}"
        );
    }
}
