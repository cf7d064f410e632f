//! An engine, sessions, connections, and bytes that say where they belong.

use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use isolane_attach::stream::{Stream, StreamOptions};
use isolane_attach::{Session, SessionOptions};
use isolane_engine::{Engine, EngineConfig, listen};
use isolane_shm::testing;

pub struct Fixture {
    pub engine: Engine,
    dir: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::of(|_| {})
    }

    pub fn of(change: impl FnOnce(&mut EngineConfig)) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let mut config = EngineConfig::new(vec![isolane_reactor::cpu::allowed().unwrap()[0]]);
        // Tests share their processors with the engine.
        config.spin = Duration::from_micros(20);
        change(&mut config);
        let engine = Engine::start(config, listen(&dir.path().join("sock")).unwrap()).unwrap();
        Fixture { engine, dir }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    pub fn attach(&self) -> Session {
        Session::connect(&self.path()).unwrap()
    }

    pub fn attach_with(&self, memory_bytes: usize) -> Session {
        Session::open(&SessionOptions {
            path: self.path(),
            memory_bytes,
            spawn_engine: false,
            ..SessionOptions::default()
        })
        .unwrap()
    }

    /// Returns a stream of a new session, and its peer.
    pub fn stream(&self) -> (Stream, TcpStream) {
        self.stream_with(StreamOptions::default())
    }

    pub fn stream_with(&self, options: StreamOptions) -> (Stream, TcpStream) {
        let (socket, peer) = testing::connection().unwrap();
        (options.adopt(&self.attach(), socket).unwrap(), peer)
    }
}

/// Pattern in which the value of each byte depends on its position.
#[derive(Clone)]
pub struct Pattern {
    seed: u64,
    pub position: u64,
}

impl Pattern {
    pub fn new(seed: u64) -> Pattern {
        Pattern { seed, position: 0 }
    }

    fn next(&mut self) -> u8 {
        self.position += 1;
        ((self.position ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        bytes.iter_mut().for_each(|byte| *byte = self.next());
    }

    pub fn check(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let wanted = self.next();
            assert_eq!(*byte, wanted, "byte {} of stream {}", self.position - 1, self.seed);
        }
    }
}
