//! Hostile clients of an isolated engine, which write anything into their shared memory and send any request at
//! any time: other clients are not affected, and the engine frees all their state.

mod clients;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use isolane_attach::stream::{Stream, StreamOptions};
use isolane_attach::{Allocation, Session};
use isolane_engine::{Engine, EngineConfig, listen};
use isolane_engine_api::layout::{DoorbellLayout, NotificationLayout};
use isolane_engine_api::stream::StreamLayout;
use isolane_engine_api::{
    CloseMode, OpenDoorbells, OpenNotificationQueue, OpenObject, Reply, Request as Ask,
};
use isolane_host::via_engine::wire::{OpenParams, Operation, Submission, VolumeLayout};
use isolane_host::{BlockRange, Buffer, Client, LaneClass, Mode, Options, Request, Uri, Via};
use isolane_shm::WakeFlag;
use isolane_shm::entries::{Receiver, Sender};
use isolane_shm::testing::{self, Corruptor};
use isolane_target::{Target, TargetConfig};
use isolane_volume::{open, spec};

use clients::{TEST_TIMEOUT, options, pattern, run, write_and_verify};

const NQN: &str = "nqn.2024-01.org.example:engine-hostile";

/// An engine and a target, in this process.
struct World {
    /// `None` once a thread has ended; then waiting clients notice the end of the engine.
    engine: Mutex<Option<Engine>>,
    dir: tempfile::TempDir,
    target: Target,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let mut config = EngineConfig::new(vec![isolane_reactor::cpu::allowed().unwrap()[0]]);
        config.spin = Duration::from_micros(20);
        let engine = Engine::start(config, listen(&dir.path().join("sock")).unwrap()).unwrap();
        let mut config = TargetConfig::new(NQN.parse().unwrap());
        config.subsystems[0].volumes = [(1, open(&spec::parse("mem:1g").unwrap()).unwrap())].into();
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config.mode = Mode::Sleep;
        World { engine: Mutex::new(Some(engine)), dir, target: Target::start(config).unwrap() }
    }

    fn is_healthy(&self) -> bool {
        let mut engine = self.engine.lock().unwrap();
        engine.take_if(|engine| !engine.is_healthy());
        engine.is_some()
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    fn place(&self) -> Uri {
        format!("nvme+tcp://{}/{NQN}", self.target.local_addrs()[0]).parse().unwrap()
    }

    fn attach(&self, memory_bytes: usize) -> Session {
        let options = isolane_attach::SessionOptions {
            path: self.path(),
            memory_bytes,
            spawn_engine: false,
            ..Default::default()
        };
        Session::open(&options).unwrap()
    }
}

/// Progress of the well-behaved clients.
#[derive(Default)]
struct Progress {
    volume: AtomicU64,
    stream: AtomicU64,
}

impl Progress {
    fn now(&self) -> [u64; 2] {
        [self.volume.load(Ordering::Relaxed), self.stream.load(Ordering::Relaxed)]
    }

    /// Until both have got on.
    fn wait(&self, world: &World) {
        let (before, end) = (self.now(), Instant::now() + TEST_TIMEOUT);
        while self.now().iter().zip(before).any(|(now, before)| *now < before + 2) {
            assert!(Instant::now() < end, "well-behaved clients are stuck: {before:?}");
            assert!(world.is_healthy(), "a thread of the engine has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Writes and reads back data on lanes shared with hostile clients, in a separate range: the last 8 MiB of the
/// volume.
fn use_volume(world: &World, progress: &Progress, is_over: &AtomicBool) {
    let uri = Uri { via: Some(Via::EngineAt(world.path())), ..world.place() };
    let mut client = Client::connect(&uri, options()).unwrap();
    write_and_verify(&mut client, 1);
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        let lba = OWN_BLOCKS + round * 16 % OWN_BLOCKS_COUNT;
        let buffer = pattern(lba, 8192, round as u8);
        let written = run(&mut client, Request::Write { lba, buffer, fua: false });
        assert!(written.result.is_ok(), "{written:?}");
        let read = run(&mut client, Request::Read { lba, buffer: Buffer::contiguous(8192) });
        assert!(read.result.is_ok(), "{read:?}");
        assert!(read.buffer.unwrap().to_vec() == pattern(lba, 8192, round as u8).to_vec(), "round {round}");
        round += 1;
        progress.volume.store(round, Ordering::Relaxed);
    }
}

/// Sends, and has it sent back.
fn use_stream(world: &World, progress: &Progress, is_over: &AtomicBool) {
    let (socket, mut peer) = testing::connection().unwrap();
    let mut stream = Stream::adopt(&world.attach(16 << 20), socket).unwrap();
    let echo = std::thread::spawn(move || {
        let mut bytes = [0; 3000];
        while let Ok(count @ 1..) = peer.read(&mut bytes) {
            peer.write_all(&bytes[..count]).unwrap();
        }
    });
    let (mut random, mut round) = (Rng::with_seed(1), 0);
    while !is_over.load(Ordering::Relaxed) {
        let len = random.usize(1..10_000);
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
        let mut back = vec![0; bytes.len()];
        stream.write_all(&bytes).unwrap();
        stream.read_exact(&mut back).unwrap();
        assert!(back == bytes, "round {round}");
        round += 1;
        progress.stream.store(round, Ordering::Relaxed);
    }
    drop(stream);
    echo.join().unwrap();
}

/// Hostile client that uses all kinds of requests.
struct Rogue<'a> {
    world: &'a World,
    session: Session,
    random: Rng,
    streams: Vec<(Stream, TcpStream)>,
    /// Where words of the session are.
    words: Vec<(u64, usize)>,
    /// The rings stay where they are until the session ends.
    allocations: Vec<Allocation>,
    submissions: Option<(Sender, Receiver, u32)>,
}

impl Rogue<'_> {
    fn new(world: &World, seed: u64) -> Rogue<'_> {
        let session = world.attach(MEMORY_BYTES);
        let words = vec![(0, 128 << 10)];
        let mut rogue = Rogue {
            world,
            session,
            random: Rng::with_seed(seed),
            streams: Vec::new(),
            words,
            submissions: None,
            allocations: Vec::new(),
        };
        rogue.open_volume();
        (0..2).for_each(|_| rogue.adopt());
        rogue
    }

    fn open_volume(&mut self) {
        let bytes = VolumeLayout::bytes(ENTRIES, ENTRIES) + WakeFlag::BYTES;
        let Ok(room) = self.session.alloc(bytes) else { return };
        let (flag, offset) = (room.offset(), room.offset() + WakeFlag::BYTES as u64);
        let place = VolumeLayout { offset, flag, submissions: ENTRIES, outcomes: ENTRIES };
        // Some with a digest of their data, others on the lanes of the honest.
        let options = Options { data_digest: self.random.u8(..4) == 0, ..options() };
        let (memory, id) = (self.session.memory().clone(), self.session.next_id());
        let params = OpenParams { uri: self.world.place().to_string(), layout: place, options };
        let object = params.object().unwrap();
        let result = self.session.request(
            "it",
            &Ask::OpenObject(OpenObject { id, core: None, queue: None, object }),
            &[],
        );
        if let Ok(Reply::Opened { .. }) = result {
            let sender = Sender::open(&memory, place.submissions().unwrap()).unwrap();
            let receiver = Receiver::open(&memory, place.outcomes().unwrap()).unwrap();
            self.submissions = Some((sender, receiver, id));
            self.words.push((room.offset(), bytes));
        }
        self.allocations.push(room);
    }

    fn adopt(&mut self) {
        let (socket, peer) = testing::connection().unwrap();
        peer.set_nonblocking(true).unwrap();
        let options = StreamOptions { rx_bytes: 4096, tx_bytes: 4096, ..Default::default() };
        if let Ok(stream) = options.adopt(&self.session, socket) {
            self.streams.push((stream, peer));
        }
    }

    /// Performs an action, well-formed or malformed.
    fn act(&mut self) {
        match self.random.u8(..16) {
            0..=5 => self.submit(),
            6..=9 => self.move_bytes(),
            10 => self.ask_for_anything(),
            11 if self.streams.len() < 6 => self.adopt(),
            11 | 12 if !self.streams.is_empty() => {
                let index = self.random.usize(..self.streams.len());
                let (stream, peer) = self.streams.swap_remove(index);
                if self.random.bool() {
                    drop(stream.into_std());
                }
                drop(peer);
            }
            13 => self.open_volume(),
            _ => drop(self.session.doorbells(0).ring(self.random.u32(..20))),
        }
    }

    fn submit(&mut self) {
        let random = &mut self.random;
        let operation = match random.u8(..6) {
            0 => Operation::Write { fua: random.bool() },
            1 => Operation::Flush,
            2 => Operation::WriteZeroes { fua: false, deallocate: random.bool() },
            3 => Operation::Deallocate,
            _ => Operation::Read,
        };
        // Anything but the blocks of the well-behaved client.
        let changes = !matches!(operation, Operation::Read | Operation::Flush);
        let lba = if changes { random.u64(..OWN_BLOCKS / 32) } else { random.u64(..) >> random.u32(..64) };
        let blocks = random.u64(..2048) >> random.u32(..12);
        let len = if random.u8(..8) == 0 { random.u64(..) } else { blocks * 512 };
        let submission = Submission {
            tag: random.u64(..),
            operation,
            class: LaneClass::Default,
            lane: u16::from(random.u8(..16) == 0),
            range: BlockRange { lba, blocks },
            offset: random.u64(..MEMORY_BYTES as u64 + 8192),
            len,
            pushed: random.u64(..),
        };
        let Some((sender, receiver, id)) = &mut self.submissions else { return };
        let pushed = sender.push(&submission.encode());
        if let Ok(true) = pushed {
            sender.publish();
        }
        let _ = self.session.doorbells(0).ring(*id);
        if random.bool() && receiver.refresh().is_ok() {
            while receiver.pop().is_some() {}
            receiver.publish();
        }
    }

    fn move_bytes(&mut self) {
        for (stream, peer) in &mut self.streams {
            let len = self.random.usize(1..3000);
            let _ = (stream.try_write(&[1; 3000][..len]), stream.try_read(&mut [0; 3000][..len]));
            let _ = (peer.write(&[1; 3000][..len]), peer.read(&mut [0; 3000][..len]));
        }
    }

    /// Well-formed requests with invalid layouts, IDs, and descriptors.
    fn ask_for_anything(&mut self) {
        let random = &mut self.random;
        let offset = match random.u8(..3) {
            0 => random.u64(..),
            1 => random.u64(..MEMORY_BYTES as u64),
            _ => random.u64(..MEMORY_BYTES as u64 / 4096) * 4096,
        };
        let (id, entries) = (random.u32(..8), 1 << random.u32(..18));
        let socket = || -> OwnedFd { testing::connection().unwrap().0.into() };
        let pair = || -> OwnedFd { std::os::unix::net::UnixStream::pair().unwrap().0.into() };
        let stream = StreamLayout {
            block: offset,
            rx: random.u64(..) >> random.u32(..64),
            rx_capacity: 1 << random.u32(..40),
            tx: offset,
            tx_capacity: 1 << random.u32(..40),
        };
        let place =
            VolumeLayout { offset, flag: offset, submissions: entries, outcomes: 1 << random.u32(..12) };
        let (request, fd) = match random.u8(..5) {
            0 => (
                Ask::OpenDoorbells(OpenDoorbells {
                    core: id % 2,
                    layout: DoorbellLayout { offset, entries },
                }),
                Some(pair()),
            ),
            1 => {
                let place = NotificationLayout { offset, cores: 1, entries };
                (Ask::OpenNotificationQueue(OpenNotificationQueue { queue: id, layout: place }), Some(pair()))
            }
            2 => {
                let open = OpenObject { id, core: None, queue: None, object: stream.object() };
                (Ask::OpenObject(open), Some(socket()))
            }
            3 => {
                let params =
                    OpenParams { uri: self.world.place().to_string(), layout: place, options: options() };
                let object = params.object().unwrap();
                (Ask::OpenObject(OpenObject { id, core: Some(0), queue: None, object }), None)
            }
            _ => (
                Ask::CloseObject {
                    id,
                    how: if random.bool() { CloseMode::Close } else { CloseMode::Release },
                },
                None,
            ),
        };
        let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
        // It may be dropped for it.
        let _ = self.session.request("anything", &request, &fds);
    }
}

/// Writes into the words of a session until the stop flag is set, at a rate chosen by the seed.
fn corrupt(corruptor: &Corruptor, words: &[(u64, usize)], seed: u64, is_over: &AtomicBool) {
    let mut random = Rng::with_seed(seed);
    while !is_over.load(Ordering::Relaxed) {
        let (offset, bytes) = words[random.usize(..words.len())];
        let line = random.usize(..bytes / 64) * 8;
        let place = match random.u8(..8) {
            0 => random.usize(..MEMORY_BYTES / 8),
            _ => offset as usize / 8 + line + random.usize(..2),
        };
        match random.u8(..4) {
            0 => corruptor.scribble(place, random.u64(..)),
            1 => corruptor.scribble(place, random.u64(..3)),
            2 => corruptor.nudge(place, random.u64(..2000)),
            _ => corruptor.nudge(place, random.u64(..2000).wrapping_neg()),
        }
        // Some sessions live for a while.
        if random.u8(..4) == 0 {
            std::thread::sleep(Duration::from_micros(random.u64(..1 + 3 * 10_u64.pow(seed as u32 % 5))));
        }
    }
}

/// Says that it is over when it goes, in order or not: others wait for that.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Private memory of this process, in bytes.
fn private_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn hostile_clients_affect_only_themselves() {
    // The variable sets a longer time.
    let rounds = std::env::var("ISOLANE_TEST_ROGUES").map_or(150, |rounds| rounds.parse::<u64>().unwrap());
    let world = World::new();
    let (progress, is_over) = (Progress::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let ends = Until(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) && world.is_healthy() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        scope.spawn(|| use_volume(&world, &progress, &is_over));
        scope.spawn(|| use_stream(&world, &progress, &is_over));
        progress.wait(&world);
        let mut early = 0;
        for round in 0..rounds {
            let mut rogue = Rogue::new(&world, round);
            let (corruptor, words) = (Corruptor::new(rogue.session.memory()), rogue.words.clone());
            let is_calm = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let calms = Until(&is_calm);
                scope.spawn(|| corrupt(&corruptor, &words, round, &is_calm));
                (0..150).for_each(|_| rogue.act());
                progress.wait(&world);
                drop(calms);
            });
            drop(rogue);
            progress.wait(&world);
            if round == rounds / 4 {
                early = private_bytes();
            }
        }
        drop(ends);
        let growth = private_bytes().saturating_sub(early);
        assert!(growth < 48 << 20, "{growth} bytes more than after a quarter of the rounds");
    });
    assert!(world.is_healthy());
    // Nothing that a session had is left.
    let end = Instant::now() + TEST_TIMEOUT;
    while !world.target.connections().is_empty() {
        assert!(Instant::now() < end, "associations outlive their sessions");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const MEMORY_BYTES: usize = 8 << 20;
const ENTRIES: u32 = 64;
/// First block of the well-behaved client, far from the blocks that hostile clients change.
const OWN_BLOCKS: u64 = ((1 << 30) - (8 << 20)) / 512;
const OWN_BLOCKS_COUNT: u64 = (8 << 20) / 512;
