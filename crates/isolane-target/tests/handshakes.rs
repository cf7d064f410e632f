//! Handshakes of our host with our target, with random keys, hash functions, and directions, for each group.
//!
//! `ISOLANE_TEST_HANDSHAKES` is the number for each group; `.ci/run long` has 2,000.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolane_auth::{KeyFile, KeyTransform};
use isolane_host::{ConnectError, Mode, Options, Uri, inspect};
use isolane_target::{AuthConfig, HostKeys, Key, KeyPair, Policy, RequiredAuth, Target, TargetConfig};
use isolane_wire::Nqn;
use isolane_wire::auth::{DhGroup, Hash};

const NQN: &str = "nqn.2014-08.org.example:locked";
const HOST: &str = "nqn.2014-08.org.example:host";

/// I/O queues of each connection. With the admin queue, it has one handshake more.
const LANES: u64 = 3;

/// Longer than any step takes on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// The keys that the target requires at present.
#[derive(Debug, Default)]
struct Present(Mutex<Option<RequiredAuth>>);

impl HostKeys for Present {
    fn required(&self, _: Option<&Nqn>, _: &Nqn) -> Option<RequiredAuth> {
        self.0.lock().unwrap().clone()
    }
}

/// A host and a target with random keys.
struct Round {
    hash: Hash,
    pair: KeyPair,
    is_mutual: bool,
    /// The host has another key than the target.
    is_wrong: bool,
}

impl Round {
    fn random() -> Round {
        let key = || {
            let transform =
                if fastrand::bool() { KeyTransform::Hash(random_of(Hash::ALL)) } else { KeyTransform::None };
            Key::generate(random_of(Hash::ALL), transform).unwrap()
        };
        let (is_mutual, is_wrong) = (fastrand::bool(), fastrand::u8(..) < 16);
        let pair = KeyPair { host: key(), controller: is_mutual.then(key) };
        Round { hash: random_of(Hash::ALL), pair, is_mutual, is_wrong }
    }

    /// Writes the files of the host, and returns its options.
    fn options(&self, directory: &Path) -> Options {
        let other = Key::generate(Hash::Sha256, KeyTransform::None).unwrap();
        let write = |name: &str, key: &Key| {
            let path = directory.join(name);
            let _ = fs::remove_file(&path);
            KeyFile::create(&path, key).unwrap();
            path
        };
        Options {
            host_nqn: HOST.parse().unwrap(),
            key: Some(write("host", if self.is_wrong { &other } else { &self.pair.host })),
            ctrl_key: self.pair.controller.as_ref().map(|key| write("controller", key)),
            lanes: LANES as usize,
            connect_timeout: TEST_TIMEOUT,
            ..Options::default()
        }
    }

    /// Connects all queues.
    fn run(self, keys: &Present, address: SocketAddr, directory: &Path) {
        let options = self.options(directory);
        let required = RequiredAuth { keys: vec![self.pair.clone()], is_mutual: self.is_mutual };
        *keys.0.lock().unwrap() = Some(required);
        let uri: Uri = format!("nvme+tcp://{address}/{NQN}").parse().unwrap();
        let result = inspect(&uri, &options);
        let what = (self.hash, self.is_mutual, self.is_wrong);
        match result {
            Ok(info) => {
                assert!(!self.is_wrong && info.negotiated.lanes.total() == LANES as usize, "{what:?}")
            }
            Err(ConnectError::Authentication { .. }) if self.is_wrong => {}
            Err(error) => panic!("{what:?}: {error}"),
        }
    }
}

fn random_of<T: Copy>(all: &[T]) -> T {
    all[fastrand::usize(..all.len())]
}

/// A target for each hash function, which all have the same keys.
fn targets(group: DhGroup, keys: &Arc<Present>) -> Vec<(Hash, Target)> {
    let start = |&hash: &Hash| {
        let mut config = TargetConfig::new(NQN.parse().unwrap());
        config.mode = Mode::Sleep;
        config.listen.push("127.0.0.1:0".parse().unwrap());
        config.subsystems[0].volumes = vec![(1, isolane_volume::open(&"mem:1M".parse().unwrap()).unwrap())];
        let policy = Policy { hashes: vec![hash], groups: vec![group] };
        let keys = Arc::clone(keys) as Arc<dyn HostKeys>;
        config.auth = Some(AuthConfig { policy, timeout: TEST_TIMEOUT, ..AuthConfig::new(keys) });
        (hash, Target::start(config).unwrap())
    };
    Hash::ALL.iter().map(start).collect()
}

fn handshakes_with(group: DhGroup) {
    let handshakes =
        std::env::var("ISOLANE_TEST_HANDSHAKES").map_or(8, |count| count.parse::<u64>().unwrap());
    let (keys, directory) = (Arc::new(Present::default()), tempfile::tempdir().unwrap());
    let targets = targets(group, &keys);
    let mut complete = 0;
    while complete < handshakes {
        let round = Round::random();
        let (_, target) = targets.iter().find(|(hash, _)| *hash == round.hash).unwrap();
        complete += if round.is_wrong { 0 } else { LANES + 1 };
        round.run(&keys, target.local_addrs()[0], directory.path());
    }
    println!("{complete} handshakes with {group}");
}

#[test]
fn random_keys_work_without_a_group() {
    handshakes_with(DhGroup::Null);
}

#[test]
fn random_keys_work_with_ffdhe2048() {
    handshakes_with(DhGroup::Ffdhe2048);
}

#[test]
fn random_keys_work_with_ffdhe3072() {
    handshakes_with(DhGroup::Ffdhe3072);
}

#[test]
fn random_keys_work_with_ffdhe4096() {
    handshakes_with(DhGroup::Ffdhe4096);
}

#[test]
fn random_keys_work_with_ffdhe6144() {
    handshakes_with(DhGroup::Ffdhe6144);
}

#[test]
fn random_keys_work_with_ffdhe8192() {
    handshakes_with(DhGroup::Ffdhe8192);
}
