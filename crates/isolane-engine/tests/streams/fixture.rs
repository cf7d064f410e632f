//! An engine, sessions, connections, and bytes that say where they belong.

use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use isolane_attach::stream::{Stream, StreamOptions};
use isolane_attach::{Options, Session};
use isolane_engine::{Config, Engine, listen};
use isolane_ring::mock;

pub struct Fixture {
    pub engine: Engine,
    folder: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::of(|_| {})
    }

    pub fn of(change: impl FnOnce(&mut Config)) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::new(vec![isolane_reactor::core::usable().unwrap()[0]]);
        // Tests share their processors with the engine.
        config.spin = Duration::from_micros(20);
        change(&mut config);
        let engine = Engine::start(config, listen(&folder.path().join("sock")).unwrap()).unwrap();
        Fixture { engine, folder }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    pub fn attach(&self) -> Session {
        Session::connect(&self.path()).unwrap()
    }

    pub fn attach_with(&self, memory_bytes: usize) -> Session {
        Session::open(&Options { path: self.path(), memory_bytes, starts: false, ..Options::default() })
            .unwrap()
    }

    /// A stream of a session of its own, and its peer.
    pub fn stream(&self) -> (Stream, TcpStream) {
        self.stream_with(StreamOptions::default())
    }

    pub fn stream_with(&self, options: StreamOptions) -> (Stream, TcpStream) {
        let (socket, peer) = mock::connection().unwrap();
        (options.adopt(&self.attach(), socket).unwrap(), peer)
    }
}

/// Bytes of which each says where it belongs.
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
