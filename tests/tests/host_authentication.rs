//! Our host over our target, with keys in files: each hash function and group, and each way to fail.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolane_host::{BlockingVolume, ConnectError, Options, Uri, Via, discover, inspect};
use isolane_target::{AuthConfig, HostKeys, Key, KeyPair, Policy, RequiredAuth, Target, TargetConfig};
use isolane_wire::Nqn;
use isolane_wire::auth::{DhGroup, Hash};
use tempfile::TempDir;

const NQN: &str = "nqn.2014-08.org.example:locked";
const HOST: &str = "nqn.2014-08.org.example:host";

/// Longer than any step takes on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Three keys: without a transform, and with two.
const KEYS: [&str; 3] = [
    "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
    "DHHC-1:01:ZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5/gIGCg4QqhWEu:",
    "DHHC-1:02:ycrLzM3Oz9DR0tPU1dbX2Nna29zd3t/g4eLj5OXm5+gJTFLW:",
];

/// Proofs by the name of the host; others need none. Tests change them while the target runs.
#[derive(Debug, Default)]
struct Required(Mutex<HashMap<String, RequiredAuth>>);

impl HostKeys for Required {
    fn required(&self, host: Option<&Nqn>, _: &Nqn) -> Option<RequiredAuth> {
        self.0.lock().unwrap().get(host?.as_str()).cloned()
    }
}

struct Scene {
    target: Option<Target>,
    config: TargetConfig,
    address: SocketAddr,
    required: Arc<Required>,
    dir: TempDir,
}

impl Scene {
    fn new(policy: Policy) -> Scene {
        let required = Arc::new(Required::default());
        let mut config = TargetConfig::new(NQN.parse().unwrap());
        config.listen.push("127.0.0.1:0".parse().unwrap());
        config.subsystems[0].volumes = vec![(1, isolane_volume::open(&"mem:16M".parse().unwrap()).unwrap())];
        let keys = Arc::clone(&required) as Arc<dyn HostKeys>;
        config.auth = Some(AuthConfig { policy, timeout: TEST_TIMEOUT, ..AuthConfig::new(keys) });
        let target = Target::start(config.clone()).unwrap();
        let (address, dir) = (target.local_addrs()[0], TempDir::new().unwrap());
        config.listen = vec![address.to_string().parse().unwrap()];
        for (at, key) in KEYS.iter().enumerate() {
            let path = dir.path().join(format!("{at}.key"));
            fs::write(&path, format!("{key}\n")).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        }
        Scene { target: Some(target), config, address, required, dir }
    }

    /// Ends the target with its associations, and starts another one with the same volume.
    fn restart(&mut self) {
        drop(self.target.take());
        self.target = Some(Target::start(self.config.clone()).unwrap());
    }

    fn require(&self, host: usize, controller: Option<usize>, is_mutual: bool) {
        let key = |at: usize| Key::parse(KEYS[at]).unwrap();
        let keys = vec![KeyPair { host: key(host), controller: controller.map(key) }];
        self.required.0.lock().unwrap().insert(HOST.to_owned(), RequiredAuth { keys, is_mutual });
    }

    fn key(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("{at}.key"))
    }

    fn options(&self, host: Option<usize>, controller: Option<usize>) -> Options {
        Options {
            host_nqn: HOST.parse().unwrap(),
            key: host.map(|at| self.key(at)),
            ctrl_key: controller.map(|at| self.key(at)),
            connect_timeout: TEST_TIMEOUT,
            ..Options::default()
        }
    }

    fn uri(&self) -> Uri {
        format!("nvme+tcp://{}/{NQN}", self.address).parse().unwrap()
    }

    fn error(&self, options: Options) -> String {
        let error = inspect(&self.uri(), &options).err().expect("the connection is refused").to_string();
        let secrets = KEYS.iter().map(|key| &key[10..40]);
        assert!(!secrets.into_iter().any(|secret| error.contains(secret)), "a key is in an error");
        error
    }
}

#[test]
fn each_hash_and_group_works_one_way_and_both_ways() {
    for &hash in Hash::ALL {
        for &group in DhGroup::ALL {
            let scene = Scene::new(Policy { hashes: vec![hash], groups: vec![group] });
            scene.require(0, Some(1), false);
            for controller in [None, Some(1)] {
                let options = scene.options(Some(0), controller);
                let volume = BlockingVolume::connect(&scene.uri(), options).unwrap();
                volume.write_at(&[7; 4096], 0).unwrap();
                let mut data = [0; 4096];
                volume.read_at(&mut data, 0).unwrap();
                assert_eq!(data, [7; 4096], "{hash} {group} {controller:?}");
            }
        }
    }
}

#[test]
fn keys_in_uri_authenticate_discovery_and_volume() {
    let scene = Scene::new(Policy::default());
    scene.require(0, Some(1), true);
    let (host, target) = (scene.key(0), scene.key(1));
    let keys = format!("key={}&ctrl-key={}", host.display(), target.display());
    let uri: Uri = format!("nvme+tcp://{}?{keys}", scene.address).parse().unwrap();
    let options = scene.options(None, None);
    assert_eq!(discover(&uri, &options).unwrap()[0].nqn.as_str(), NQN);
    assert_eq!(inspect(&uri, &options).unwrap().nqn.as_str(), NQN);
    let error = discover(&scene.uri(), &options).unwrap_err();
    assert!(matches!(error, ConnectError::NoKey(_)), "{error}");
}

#[test]
fn refusals_name_cause_and_remedy() {
    let scene = Scene::new(Policy { hashes: vec![Hash::Sha256], groups: vec![DhGroup::Null] });
    scene.require(0, Some(1), false);
    let expect = |options: Options, text: &str| {
        let error = scene.error(options);
        assert!(error.contains(text), "{error}");
    };
    expect(scene.options(None, None), "requires authentication; give the key of this host with `--key FILE`");
    expect(scene.options(Some(1), None), "authentication failed: the target does not accept the key");
    expect(scene.options(None, Some(1)), "the key of the target needs a key of this host also");
    expect(scene.options(Some(0), Some(2)), "this host refuses the target: its response is wrong");
    scene.require(0, None, false);
    expect(scene.options(Some(0), Some(1)), "the target does not accept the key: it has another key");
    scene.require(0, Some(1), true);
    expect(scene.options(Some(0), None), "the target does not accept the key");
    scene.required.0.lock().unwrap().get_mut(HOST).unwrap().keys.clear();
    expect(scene.options(Some(0), None), "ask the target to allow this host's NQN");
}

#[test]
fn host_with_key_of_target_accepts_no_other_target() {
    let scene = Scene::new(Policy::default());
    // The target has no keys, so it asks for none.
    inspect(&scene.uri(), &scene.options(Some(0), None)).unwrap();
    let error = scene.error(scene.options(Some(0), Some(1)));
    assert!(error.contains("the target cannot prove its identity, so leave out its key"), "{error}");
}

#[test]
fn unusable_key_files_are_named() {
    let scene = Scene::new(Policy::default());
    scene.require(0, None, false);
    let path = scene.key(0);
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    let error = scene.error(scene.options(Some(0), None));
    assert!(error.contains("0.key: mode 640 lets other users read"), "{error}");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    fs::write(&path, KEYS[0].replace("AQID", "AQIE")).unwrap();
    let error = scene.error(scene.options(Some(0), None));
    assert!(error.contains("0.key: the CRC of the key is wrong"), "{error}");
    let error =
        scene.error(Options { key: Some(scene.dir.path().join("none")), ..scene.options(None, None) });
    assert!(error.contains("none: cannot read the key"), "{error}");
}

/// The target has two keys for a while; the host reads the new one when it connects again.
#[test]
fn keys_change_without_a_new_volume() {
    let mut scene = Scene::new(Policy::default());
    scene.require(0, None, false);
    let volume = BlockingVolume::connect(&scene.uri(), scene.options(Some(0), None)).unwrap();
    volume.write_at(&[7; 4096], 0).unwrap();
    scene.require(2, None, false);
    fs::copy(scene.key(2), scene.key(0)).unwrap();
    let mut data = [0; 4096];
    scene.restart();
    volume.read_at(&mut data, 0).unwrap();
    assert_eq!(data, [7; 4096]);
}

#[test]
fn engine_gets_no_keys() {
    let scene = Scene::new(Policy::default());
    let options = Options { via: Some(Via::EngineAt("/nonexistent".into())), ..scene.options(Some(0), None) };
    let error = BlockingVolume::connect(&scene.uri(), options).err().unwrap().to_string();
    assert!(error.contains("keys with an engine"), "{error}");
}
