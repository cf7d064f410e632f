//! An engine and a target.

use std::net::SocketAddr;
use std::path::PathBuf;

use isolane_engine::{Engine, EngineConfig, listen};
use isolane_host::{Buffer, Client, Mode, Options, Request, Uri, Via};
use isolane_target::{Target, TargetConfig};
use isolane_volume::{open, spec};

use crate::NQN;
use crate::clients::{options, pattern, run};

/// An engine and a target, in this process.
pub struct Harness {
    pub engine: Engine,
    pub dir: tempfile::TempDir,
    pub target: Target,
}

impl Harness {
    pub fn new() -> Harness {
        Harness::of(|_| {})
    }

    /// With a target that is as the test wants it.
    pub fn of(change: impl FnOnce(&mut TargetConfig)) -> Harness {
        let dir = tempfile::tempdir().unwrap();
        let mut config = EngineConfig::new(vec![isolane_reactor::cpu::allowed().unwrap()[0]]);
        config.mode = Mode::Sleep;
        let engine = Engine::start(config, listen(&dir.path().join("sock")).unwrap()).unwrap();
        Harness { engine, dir, target: target(change) }
    }

    /// There is no target any more where one was.
    pub fn lose_target(&mut self) {
        self.target = target(|_| {});
    }

    /// The target ends, and another one starts in its place.
    pub fn restart_target(&mut self, change: impl FnOnce(&mut TargetConfig)) {
        let address = self.address();
        // The first one has to end before the other can listen there.
        self.lose_target();
        self.target = target(|config| {
            config.listen = vec![address.to_string().parse().unwrap()];
            change(config);
        });
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    pub fn address(&self) -> SocketAddr {
        self.target.local_addrs()[0]
    }

    /// Through the engine.
    pub fn uri(&self) -> Uri {
        Uri { via: Some(Via::EngineAt(self.path())), ..self.place() }
    }

    /// The volume alone.
    pub fn place(&self) -> Uri {
        format!("nvme+tcp://{}/{NQN}", self.address()).parse().unwrap()
    }

    pub fn connect(&self, options: Options) -> Client {
        Client::connect(&self.uri(), options).unwrap()
    }

    /// Checks that a new client is served.
    pub fn serves_others(&self) {
        let mut client = self.connect(Options { depth: 16, ..options() });
        let lba = 60_000;
        let written = run(&mut client, Request::Write { lba, buffer: pattern(lba, 4096, 3), fua: false });
        assert!(written.result.is_ok(), "{written:?}");
        let read = run(&mut client, Request::Read { lba, buffer: Buffer::contiguous(4096) });
        assert!(read.result.is_ok() && read.buffer.unwrap().to_vec() == pattern(lba, 4096, 3).to_vec());
        client.close();
    }
}

fn target(change: impl FnOnce(&mut TargetConfig)) -> Target {
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.subsystems[0].volumes = [(1, open(&spec::parse("mem:64m").unwrap()).unwrap())].into();
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.mode = Mode::Sleep;
    change(&mut config);
    Target::start(config).unwrap()
}
