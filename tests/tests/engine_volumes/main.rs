//! Volumes through an isolated engine behave as in process, also with other clients of the engine.

#[path = "../clients/mod.rs"]
mod clients;
mod harness;
mod hostile;
mod observe;
mod relay;
mod restart;
mod rogue;

use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_host::{
    BlockRange, BlockingVolume, Buffer, Client, ConnectError, Options, Request, RequestError, Uri, Via,
    Volume, Wait,
};

use clients::{TEST_TIMEOUT, options, pattern, run, wait_for, write_and_verify};
use harness::Harness;

const NQN: &str = "nqn.2024-01.org.example:engine-volumes";

#[test]
fn transfers_all_lengths_with_and_without_digests() {
    let harness = Harness::new();
    for data_digest in [false, true] {
        let options = Options { lanes: 2, header_digest: data_digest, data_digest, ..options() };
        let mut client = harness.connect(options);
        assert_eq!(client.info().negotiated.data_digest, data_digest);
        assert_eq!(client.namespace().len_bytes(), 64 << 20);
        write_and_verify(&mut client, 2);
        client.close();
    }
}

#[test]
fn zeroes_deallocates_and_flushes_as_in_process() {
    let harness = Harness::new();
    let mut client = harness.connect(options());
    assert!(
        run(&mut client, Request::Write { lba: 0, buffer: pattern(0, 8192, 1), fua: false }).result.is_ok()
    );
    let range = BlockRange { lba: 2, blocks: 3 };
    assert!(run(&mut client, Request::WriteZeroes { range, fua: true, deallocate: false }).result.is_ok());
    let ranges = vec![BlockRange { lba: 10, blocks: 1 }, BlockRange { lba: 12, blocks: 2 }];
    assert!(run(&mut client, Request::Deallocate { ranges }).result.is_ok());
    let whole = BlockRange { lba: 4096, blocks: 100_000 };
    assert!(
        run(&mut client, Request::WriteZeroes { range: whole, fua: false, deallocate: true }).result.is_ok()
    );
    assert!(run(&mut client, Request::Flush).result.is_ok());
    let read = run(&mut client, Request::Read { lba: 0, buffer: Buffer::contiguous(8192) });
    let mut expected = pattern(0, 8192, 1).to_vec();
    expected[1024..2560].fill(0);
    expected[5120..5632].fill(0);
    expected[6144..7168].fill(0);
    assert!(read.result.is_ok() && read.buffer.unwrap().to_vec() == expected);
}

#[test]
fn fails_with_the_errors_of_in_process() {
    let harness = Harness::new();
    let mut client = harness.connect(options());
    let mut error = |request| run(&mut client, request).result.unwrap_err();
    let read = |lba, bytes| Request::Read { lba, buffer: Buffer::contiguous(bytes) };
    assert!(matches!(error(read(131_072, 512)), RequestError::OutOfRange { capacity: 131_072, .. }));
    assert!(matches!(error(read(0, 100)), RequestError::Unaligned { bytes: 100, block_bytes: 512 }));
    assert!(matches!(error(Request::Deallocate { ranges: vec![] }), RequestError::InvalidRanges));
    client.submit(7, read(0, 512), 9);
    let completion = wait_for(&mut client, 1).remove(0);
    assert!(matches!(completion.result, Err(RequestError::Lane { lane: 7, lanes: 1 })));
    assert_eq!(completion.buffer.unwrap().len(), 512);
}

#[test]
fn reports_reason_of_failed_connect() {
    let harness = Harness::new();
    let unreachable = Uri { port: 1, ..harness.uri() };
    let error = Client::connect(&unreachable, options()).err().unwrap();
    assert!(matches!(&error, ConnectError::Engine(why) if why.contains("TCP connect failed")), "{error}");
    let nowhere = Uri { via: Some(Via::EngineAt("/nonexistent/engine.sock".into())), ..harness.uri() };
    let error = Client::connect(&nowhere, options()).err().unwrap().to_string();
    assert!(error.contains("isolane engine"), "{error}");
    let other = Uri { nqn: Some("nqn.2024-01.org.example:other".parse().unwrap()), ..harness.uri() };
    assert!(Client::connect(&other, options()).is_err());
    harness.serves_others();
}

/// The engine would have deeper lanes than one application asks for, because it shares them.
#[test]
fn shares_deep_lanes_and_reports_requested_depth() {
    let harness = Harness::of(|config| config.queue_depth = 32);
    let mut client = harness.connect(Options { depth: 8, ..options() });
    assert_eq!(client.info().negotiated.depth, 8);
    assert!(run(&mut client, Request::Flush).result.is_ok());
    let error = Client::connect(&harness.uri(), Options { depth: 64, exact_depth: true, ..options() })
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("64") && error.contains("31"), "{error}");
    harness.serves_others();
}

#[test]
fn uri_selects_engine_for_futures_and_blocking() {
    let harness = Harness::new();
    let text = format!("{}?via={}", harness.place(), harness.path().display());
    let uri: Uri = text.parse().unwrap();
    let blocking = BlockingVolume::connect(&uri, options()).unwrap();
    let bytes = pattern(8, 65_536, 9).to_vec();
    blocking.write_at(&bytes, 8 * 512).unwrap();
    let mut back = vec![0; bytes.len()];
    blocking.read_at(&mut back, 8 * 512).unwrap();
    assert!(back == bytes);
    let volume = block_on(Volume::connect(&uri, options())).unwrap();
    let reads: Vec<_> = (0..64).map(|_| volume.read(8 * 512, Buffer::contiguous(4096))).collect();
    for read in reads {
        assert!(block_on(read).unwrap().to_vec() == bytes[..4096]);
    }
    let mut submitter = blocking.submitter(16);
    for tag in 0..16 {
        submitter.submit(Request::Read { lba: 8, buffer: Buffer::contiguous(512) }, tag).unwrap();
    }
    let mut completions = Vec::new();
    while submitter.outstanding() > 0 {
        submitter.wait(&mut completions);
    }
    assert!(completions.iter().all(|completion| completion.result.is_ok()));
    block_on(volume.close());
    blocking.close();
}

#[test]
fn equal_volumes_share_lanes() {
    let harness = Harness::new();
    let connections = || harness.target.connections().len();
    let (mut one, mut two) = (harness.connect(options()), harness.connect(options()));
    assert_eq!(connections(), 2, "an admin queue and a lane for both");
    let (other, cntlid) = (harness.connect(Options { lanes: 3, ..options() }), one.info().controller.cntlid);
    assert_eq!((connections(), two.info().controller.cntlid), (6, cntlid));
    assert_ne!(other.info().controller.cntlid, cntlid);
    assert!(run(&mut one, Request::Write { lba: 0, buffer: pattern(0, 4096, 1), fua: false }).result.is_ok());
    one.close();
    let read = run(&mut two, Request::Read { lba: 0, buffer: Buffer::contiguous(4096) });
    assert!(read.buffer.unwrap().to_vec() == pattern(0, 4096, 1).to_vec());
    two.close();
    other.close();
    let end = Instant::now() + TEST_TIMEOUT;
    while connections() > 0 {
        assert!(Instant::now() < end, "{} connections are still there", connections());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn rejects_uri_longer_than_a_message() {
    let harness = Harness::new();
    let uri: Uri = format!("nvme+tcp://{}:4420/{NQN}", "a".repeat(2000)).parse().unwrap();
    let uri = Uri { via: Some(Via::EngineAt(harness.path())), ..uri };
    let error = Client::connect(&uri, options()).err().unwrap();
    assert!(matches!(&error, ConnectError::Unsupported(what) if what.contains("1024")), "{error}");
}

#[test]
fn waker_ends_wait_for_engine() {
    let harness = Harness::new();
    let mut client = harness.connect(options());
    let waker = client.waker();
    let (turned, heard) = std::sync::mpsc::channel();
    let caller = std::thread::spawn(move || {
        for () in heard {
            waker.wake();
        }
    });
    for _ in 0..1000 {
        turned.send(()).unwrap();
        assert_eq!(client.turn(&mut Vec::new(), Wait::Forever), 0);
    }
    drop(turned);
    caller.join().unwrap();
}

fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}
