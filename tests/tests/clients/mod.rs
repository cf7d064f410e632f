//! A client of a test: what it writes, and how it waits.

use std::time::{Duration, Instant};

use isolane_host::{Buffer, Client, Completion, Mode, Options, Request, Wait};

/// What a test gives up after.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Lanes that are deep and do not spin.
pub fn options() -> Options {
    Options { mode: Mode::Sleep, depth: 32, ..Options::default() }
}

/// Blocks of which each says where it belongs.
pub fn pattern(lba: u64, bytes: usize, salt: u8) -> Buffer {
    let mut buffer = Buffer::contiguous(bytes);
    for (index, block) in buffer.as_mut_slice().unwrap().chunks_mut(512).enumerate() {
        block.fill(salt ^ (lba + index as u64) as u8);
        block[..8].copy_from_slice(&(lba + index as u64).to_le_bytes());
    }
    buffer
}

/// Turns until so many have completed.
pub fn wait_for(client: &mut Client, count: usize) -> Vec<Completion> {
    let deadline = Instant::now() + PATIENCE;
    let mut completions = Vec::new();
    while completions.len() < count {
        client.turn(&mut completions, Wait::Until(deadline));
        assert!(Instant::now() < deadline, "{} of {count} completions", completions.len());
    }
    completions
}

/// Does one request.
pub fn run(client: &mut Client, request: Request) -> Completion {
    client.submit(0, request, 0);
    wait_for(client, 1).remove(0)
}

/// Writes patterns of many sizes, as deep as the lanes take them, and reads them back.
pub fn write_and_verify(client: &mut Client, lanes: usize) {
    let sizes = [512, 4096, 8192, 16_384, 20_480, 65_536, 1 << 20, (2 << 20) + 512];
    let mut places = Vec::new();
    let mut lba = 1;
    for bytes in sizes.into_iter().cycle().take(40) {
        places.push((lba, bytes));
        lba += bytes as u64 / 512 + 3;
    }
    for (tag, &(lba, bytes)) in places.iter().enumerate() {
        let request = Request::Write { lba, buffer: pattern(lba, bytes, 0x5a), fua: tag % 7 == 0 };
        client.submit(tag % lanes, request, tag as u64);
    }
    for completion in wait_for(client, places.len()) {
        assert!(completion.result.is_ok(), "{completion:?}");
    }
    for (tag, &(lba, bytes)) in places.iter().enumerate() {
        client.submit(
            (tag + 1) % lanes,
            Request::Read { lba, buffer: Buffer::contiguous(bytes) },
            tag as u64,
        );
    }
    for completion in wait_for(client, places.len()) {
        assert!(completion.result.is_ok(), "{completion:?}");
        let (lba, bytes) = places[completion.tag as usize];
        assert!(
            completion.buffer.unwrap().to_vec() == pattern(lba, bytes, 0x5a).to_vec(),
            "{bytes} bytes at {lba}"
        );
    }
}
