//! Host and target with lanes on several cores: both kinds of volumes, every class, and restarts.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use isolane_host::{
    BlockingVolume, Buffer, Completion, Cores, LaneClass, Options, Reconnect, Request, Uri, Volume,
};
use isolane_reactor::cpu;
use isolane_target::{Target, TargetConfig};
use isolane_volume::{open, spec};

const NQN: &str = "nqn.2024-01.org.example:host-cores";

fn config(volume: &Arc<dyn isolane_volume::Volume>) -> TargetConfig {
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.subsystems[0].volumes = [(1, Arc::clone(volume))].into();
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.cores = cpu::allowed().unwrap();
    config.cores.truncate(2);
    config
}

fn volume(text: &str) -> Arc<dyn isolane_volume::Volume> {
    open(&spec::parse(text).unwrap()).unwrap()
}

fn uri(address: SocketAddr) -> Uri {
    format!("nvme+tcp://{address}/{NQN}").parse().unwrap()
}

/// Two cores, or the only one.
fn cores() -> Vec<usize> {
    let mut cores = cpu::allowed().unwrap();
    cores.truncate(2);
    cores
}

/// A lane of each class on each core.
fn options() -> Options {
    let cores = cores();
    let lanes = cores.len();
    let cores = Cores::new(cores).unwrap();
    Options { cores, lanes, read_lanes: lanes, poll_lanes: lanes, depth: 16, ..Options::default() }
}

fn pattern(bytes: usize, fill: u8) -> Vec<u8> {
    (0..bytes).map(|index| fill ^ (index / 512) as u8).collect()
}

/// One thread on each core does the same.
fn on_each_core(act: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for (thread, core) in cores().into_iter().enumerate() {
            let act = &act;
            scope.spawn(move || {
                cpu::pin(core).unwrap();
                act(thread);
            });
        }
    });
}

#[test]
fn classes_run_on_core_of_caller() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk").to_string_lossy().into_owned();
    let target = Target::start(config(&volume(&format!("{file},size=64M")))).unwrap();
    let uri = uri(target.local_addrs()[0]);
    let waiting = BlockingVolume::connect(&uri, options()).unwrap();
    let awaited = block_on(Volume::connect(&uri, options())).unwrap();
    let per_volume = cores().len() * 4;
    assert_eq!(target.connections().len(), 2 * per_volume, "an association for each core of each volume");
    on_each_core(|thread| {
        let (at, urgent) = ((thread as u64) << 24, waiting.with_class(LaneClass::Poll));
        for round in 0..8u8 {
            for bytes in [512, 4096, 300 * 512, 1 << 20] {
                let written = pattern(bytes, round);
                let mut read = vec![0; bytes];
                waiting.write_at(&written, at).unwrap();
                waiting.flush().unwrap();
                urgent.read_at(&mut read, at).unwrap();
                assert!(read == written);
                let mut buffer = Buffer::contiguous(bytes);
                buffer.as_mut_slice().unwrap().copy_from_slice(&pattern(bytes, !round));
                let buffer = block_on(awaited.write(at, buffer)).unwrap();
                block_on(awaited.flush()).unwrap();
                let buffer = block_on(awaited.read(at, buffer)).unwrap();
                assert!(buffer.to_vec() == pattern(bytes, !round));
                // A completed write is visible through all volumes and associations.
                waiting.read_at(&mut read, at).unwrap();
                assert!(read == pattern(bytes, !round));
            }
        }
    });
    for connections in [waiting.connections(), block_on(awaited.connections())] {
        assert_eq!(connections.len(), per_volume);
        assert!(connections.iter().all(|status| status.core == Some(status.driving_core)), "{connections:?}");
    }
    waiting.close();
    block_on(awaited.close());
    wait_until(|| target.connections().is_empty());
}

#[test]
fn target_restart_under_threads_loses_nothing() {
    let volume = volume("mem:64M");
    let mut target = Some(Target::start(config(&volume)).unwrap());
    let address = target.as_ref().unwrap().local_addrs()[0];
    let reconnect = Reconnect { max_delay: Duration::from_millis(100), ..Reconnect::default() };
    let host = BlockingVolume::connect(&uri(address), Options { reconnect, ..options() }).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            on_each_core(|thread| {
                for round in 0.. {
                    write_and_read_back(&host, thread as u64 * 10_000, round);
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                }
            });
        });
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(150));
            target.take().map(|target| target.shutdown(Duration::from_secs(1)));
            let mut config = config(&volume);
            config.listen = vec![address.into()];
            target = Some(Target::start(config).unwrap());
        }
        is_over.store(true, Ordering::SeqCst);
        load.join().unwrap();
    });
}

/// Runs many requests at a time: each block has the data of its last write.
fn write_and_read_back(host: &BlockingVolume, first: u64, round: u64) {
    let mut submitter = host.submitter(16);
    let (fill, mut completions) = (|at: u64| (round * 31 + at) as u8, Vec::new());
    let mut wait_for_all = |submitter: &mut isolane_host::Submitter| -> Vec<Completion> {
        while submitter.outstanding() > 0 {
            submitter.wait(&mut completions);
        }
        std::mem::take(&mut completions)
    };
    for at in 0..16 {
        let mut buffer = Buffer::contiguous(8192);
        buffer.as_mut_slice().unwrap().fill(fill(at));
        submitter.submit(Request::Write { lba: first + at * 16, buffer, fua: false }, at).unwrap();
    }
    assert!(wait_for_all(&mut submitter).iter().all(|completion| completion.result.is_ok()));
    for at in 0..16 {
        let buffer = Buffer::contiguous(8192);
        submitter.submit(Request::Read { lba: first + at * 16, buffer }, at).unwrap();
    }
    for completion in wait_for_all(&mut submitter) {
        assert!(completion.result.is_ok(), "{completion:?}");
        assert!(completion.buffer.unwrap().to_vec() == vec![fill(completion.tag); 8192], "round {round}");
    }
}

fn wait_until(is_done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_done() {
        assert!(Instant::now() < deadline, "it did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Minimal executor.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Unpark(std::thread::current()))));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
