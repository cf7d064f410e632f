//! Volumes through an isolated engine, against our target: what comes through is what comes through in
//! process, whoever else uses the engine.

#[path = "../clients/mod.rs"]
mod clients;
mod hostile;
mod relay;
mod restart;
mod rogue;
mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_host::{
    BlockRange, BlockingVolume, Buffer, Client, ConnectError, Options, Request, RequestError, Uri, Via,
    Volume, Wait,
};

use clients::{PATIENCE, options, pattern, run, wait_for, write_and_verify};
use world::World;

const NQN: &str = "nqn.2024-01.org.example:engine-volumes";

#[test]
fn data_of_all_lengths_comes_through_with_and_without_digests() {
    let world = World::new();
    for data_digest in [false, true] {
        let options = Options { lanes: 2, header_digest: data_digest, data_digest, ..options() };
        let mut client = world.connect(options);
        assert_eq!(client.info().negotiated.data_digest, data_digest);
        assert_eq!(client.namespace().len_bytes(), 64 << 20);
        write_and_verify(&mut client, 2);
        client.close();
    }
}

#[test]
fn zeroing_deallocating_and_flushing_do_what_they_do_in_process() {
    let world = World::new();
    let mut client = world.connect(options());
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
fn what_fails_fails_with_the_same_errors_as_in_process() {
    let world = World::new();
    let mut client = world.connect(options());
    let mut error = |request| run(&mut client, request).result.unwrap_err();
    let read = |lba, bytes| Request::Read { lba, buffer: Buffer::contiguous(bytes) };
    assert!(matches!(error(read(131_072, 512)), RequestError::OutOfRange { capacity: 131_072, .. }));
    assert!(matches!(error(read(0, 100)), RequestError::Unaligned { bytes: 100, block_bytes: 512 }));
    assert!(matches!(error(Request::Deallocate { ranges: vec![] }), RequestError::Ranges));
    client.submit(7, read(0, 512), 9);
    let completion = wait_for(&mut client, 1).remove(0);
    assert!(matches!(completion.result, Err(RequestError::Lane { lane: 7, lanes: 1 })));
    assert_eq!(completion.buffer.unwrap().len(), 512);
}

#[test]
fn who_cannot_be_connected_is_told_why() {
    let world = World::new();
    let nobody = Uri { port: 1, ..world.uri() };
    let error = Client::connect(&nobody, options()).err().unwrap();
    assert!(matches!(&error, ConnectError::Engine(why) if why.contains("TCP connection")), "{error}");
    let nowhere = Uri { via: Some(Via::EngineAt("/nonexistent/engine.sock".into())), ..world.uri() };
    let error = Client::connect(&nowhere, options()).err().unwrap().to_string();
    assert!(error.contains("isolane engine"), "{error}");
    let other = Uri { nqn: Some("nqn.2024-01.org.example:other".parse().unwrap()), ..world.uri() };
    assert!(Client::connect(&other, options()).is_err());
    world.serves_others();
}

/// The engine would have deeper lanes than one application asks for, because it shares them.
#[test]
fn lanes_are_as_deep_as_the_target_lets_them_be_and_who_asked_for_less_is_told_so() {
    let world = World::of(|config| config.queue_depth = 32);
    let mut client = world.connect(Options { depth: 8, ..options() });
    assert_eq!(client.info().negotiated.depth, 8);
    assert!(run(&mut client, Request::Flush).result.is_ok());
    let error = Client::connect(&world.uri(), Options { depth: 64, ..options() }).err().unwrap().to_string();
    assert!(error.contains("64") && error.contains("31"), "{error}");
    world.serves_others();
}

#[test]
fn futures_and_blocking_callers_use_the_engine_by_the_uri_alone() {
    let world = World::new();
    let text = format!("{}?via={}", world.place(), world.path().display());
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
fn who_opens_the_same_shares_the_lanes_and_who_wants_others_does_not() {
    let world = World::new();
    let connections = || world.target.connections().len();
    let (mut one, mut two) = (world.connect(options()), world.connect(options()));
    assert_eq!(connections(), 2, "an admin queue and a lane for both");
    let (other, cntlid) = (world.connect(Options { lanes: 3, ..options() }), one.info().controller.cntlid);
    assert_eq!((connections(), two.info().controller.cntlid), (6, cntlid));
    assert_ne!(other.info().controller.cntlid, cntlid);
    assert!(run(&mut one, Request::Write { lba: 0, buffer: pattern(0, 4096, 1), fua: false }).result.is_ok());
    one.close();
    let read = run(&mut two, Request::Read { lba: 0, buffer: Buffer::contiguous(4096) });
    assert!(read.buffer.unwrap().to_vec() == pattern(0, 4096, 1).to_vec());
    two.close();
    other.close();
    let end = Instant::now() + PATIENCE;
    while connections() > 0 {
        assert!(Instant::now() < end, "{} connections are still there", connections());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_uri_that_is_too_long_for_a_message_is_an_error() {
    let world = World::new();
    let uri: Uri = format!("nvme+tcp://{}:4420/{NQN}", "a".repeat(2000)).parse().unwrap();
    let uri = Uri { via: Some(Via::EngineAt(world.path())), ..uri };
    let error = Client::connect(&uri, options()).err().unwrap();
    assert!(matches!(&error, ConnectError::Unsupported(what) if what.contains("1024")), "{error}");
}

#[test]
fn a_waker_ends_the_sleep_of_one_who_waits_for_an_engine() {
    let world = World::new();
    let mut client = world.connect(options());
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
