//! A server with a volume, and small helpers of the tests.

use std::path::PathBuf;
use std::sync::Arc;

use isolane_reactor::cpu::raise_fd_limit;
use isolane_reactor::{IoChoice, Mode, ReactorConfig};
use isolane_vhost::request::{RangeSegment, request_type};
use isolane_vhost::{Server, ServerConfig};
use isolane_volume::{ShutdownError, Volume, open, spec};

use super::{Guest, Monitor};

pub const OK: u8 = 0;
pub const IO_ERROR: u8 = 1;
pub const UNSUPPORTED: u8 = 2;

pub struct Fixture {
    dir: tempfile::TempDir,
    io: IoChoice,
    server: Option<Server>,
}

impl Fixture {
    pub fn new(volume: Arc<dyn Volume>) -> Fixture {
        Fixture::with(volume, IoChoice::Auto)
    }

    fn with(volume: Arc<dyn Volume>, io: IoChoice) -> Fixture {
        let dir = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let mut fixture = Fixture { dir, io, server: None };
        fixture.start(volume);
        fixture
    }

    pub fn of(text: &str) -> Fixture {
        Fixture::of_with(text, IoChoice::Auto)
    }

    pub fn of_with(text: &str, io: IoChoice) -> Fixture {
        Fixture::with(open(&spec::parse(text).unwrap()).unwrap(), io)
    }

    /// Starts a server instead of the former one, which continues without its socket, as if it was killed.
    pub fn start(&mut self, volume: Arc<dyn Volume>) {
        let _ = std::fs::remove_file(self.path());
        // As the program does: the limit allows all queues.
        raise_fd_limit().unwrap();
        let reactor = ReactorConfig { mode: Mode::Sleep, io: self.io, ..ReactorConfig::default() };
        let server = Server::start(ServerConfig { volume, socket: self.path(), reactor }).unwrap();
        std::mem::forget(self.server.replace(server));
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("vhost")
    }

    /// A guest with started queues.
    pub fn guest(&self, queues: usize) -> (Guest, Monitor) {
        let mut guest = Guest::new();
        let monitor = self.attach(&mut guest, queues);
        (guest, monitor)
    }

    /// Connects the monitor of a guest, and starts its queues.
    pub fn attach(&self, guest: &mut Guest, queues: usize) -> Monitor {
        let mut monitor = Monitor::connect(&self.path(), 0);
        monitor.set_memory(guest);
        monitor.set_inflight(guest, queues as u16);
        (0..queues).for_each(|index| monitor.start(guest, index));
        monitor
    }

    pub fn shutdown(&mut self) -> Result<(), ShutdownError> {
        let result = self.server.take().unwrap().shutdown();
        assert!(!self.path().exists(), "the socket is left");
        result
    }
}

pub fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    RangeSegment { sector, sectors, flags }.encode().to_vec()
}

/// Checks that a queue is served.
pub fn check(guest: &mut Guest, queue: usize) {
    assert_eq!(guest.run(queue, request_type::IN, 0, &[], 4096).0, OK);
}

pub fn submit_writes(guest: &mut Guest, count: u8) -> Vec<u16> {
    let write = |at: u8| guest.submit(0, request_type::OUT, at.into(), &[at + 1; 512], &[512], false);
    (0..count).map(write).collect()
}
