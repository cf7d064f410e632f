//! Authentication, from the files of keys to refusals in plain words on both sides.

use std::fs;
use std::path::{Path, PathBuf};

use crate::conditions::wait_for_log;
use crate::discovery_log::connect_and_be_silent;
use crate::{Server, fail, program, succeed, text};

const NQN: &str = "nqn.2014-08.org.example:disks";
const HOST: &str = "nqn.2014-08.org.example:db1";
const STRANGER: &str = "nqn.2014-08.org.example:stranger";

/// A directory with two keys, and configuration files that name them.
struct Keys {
    directory: tempfile::TempDir,
}

impl Keys {
    fn new() -> Keys {
        let keys = Keys { directory: tempfile::tempdir().unwrap() };
        for name in ["host", "target", "other"] {
            succeed(&["key", "gen", text(&keys.path(name))]);
        }
        keys
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}.key"))
    }

    /// Returns `--key` and `--ctrl-key` with these keys.
    fn options(&self, host: Option<&str>, target: Option<&str>) -> Vec<String> {
        let option = |option: &str, name: Option<&str>| {
            name.map(|name| format!("{option}={}", self.path(name).display()))
        };
        let keys = [option("--key", host), option("--ctrl-key", target)].into_iter().flatten();
        keys.chain([format!("--host-nqn={HOST}")]).collect()
    }

    /// A file with one host that has both keys.
    fn config(&self, server: &str, host: &str, subsystem: &str) -> PathBuf {
        let (key, target) = (self.path("host"), self.path("target"));
        let file = format!(
            "[server]\nmode = \"sleep\"\ncontrol-socket = \"off\"\n{server}\n[[port]]\nname = \"local\"\n\
             listen = \"127.0.0.1:0\"\n\n[[host]]\nname = \"db1\"\nnqn = \"{HOST}\"\n\
             auth-key = \"file:{}\"\nauth-target-key = \"file:{}\"\n{host}\n[[subsystem]]\nnqn = \"{NQN}\"\n\
             ports = [\"local\"]\n{subsystem}\n\n[[subsystem.namespace]]\nnsid = 1\nvolume = \"mem:1M\"\n",
            key.display(),
            target.display()
        );
        let path = self.directory.path().join("isolane.toml");
        fs::write(&path, file).unwrap();
        path
    }

    /// No key is in this text.
    fn check_absent(&self, shown: &str) {
        for name in ["host", "target", "other"] {
            let key = fs::read_to_string(self.path(name)).unwrap();
            assert!(!shown.contains(&key[10..40]), "{name}.key is in: {shown}");
        }
    }
}

fn serve(config: &Path) -> Server {
    Server::start_alone(&["--config", text(config)])
}

fn info(server: &Server, options: &[String]) -> Vec<String> {
    let uri = format!("{}/{NQN}", server.uri);
    ["info".to_owned(), uri].into_iter().chain(options.iter().cloned()).collect()
}

fn as_str(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

#[test]
fn host_with_a_key_must_use_it() {
    let keys = Keys::new();
    let server = serve(&keys.config("", "", "hosts = \"any\""));
    for target in [None, Some("target")] {
        succeed(&as_str(&info(&server, &keys.options(Some("host"), target))));
    }
    // The key is in the URI of another program.
    let uri = format!("{}/{NQN}?key={}", server.uri, keys.path("host").display());
    let stdout = succeed(&["copy", &uri, "-", "--host-nqn", HOST]);
    assert_eq!(stdout.len(), 1 << 20);
    let error = fail(&as_str(&info(&server, &keys.options(None, None))));
    assert!(
        error.contains("the target requires authentication; give the key of this host with `--key"),
        "{error}"
    );
    let error = fail(&as_str(&info(&server, &keys.options(Some("other"), None))));
    assert!(error.contains("authentication failed: the target does not accept the key"), "{error}");
    let error = fail(&as_str(&info(&server, &keys.options(Some("host"), Some("other")))));
    assert!(error.contains("this host refuses the target: its response is wrong"), "{error}");
    // Other hosts are admitted without one, and discovery needs none.
    succeed(&["info", &format!("{}/{NQN}", server.uri), "--host-nqn", STRANGER]);
    succeed(&["discover", &server.uri, "--host-nqn", STRANGER]);
    let log = server.log_at_end();
    assert!(
        log.contains(&format!("authentication of {HOST}: its response is wrong: the keys of both")),
        "{log}"
    );
    keys.check_absent(&log);
    keys.check_absent(&error);
}

#[test]
fn a_silent_host_is_closed_when_the_time_to_authenticate_ends() {
    let server =
        serve(&Keys::new().config("auth-within = \"1s\"", "require = \"auth\"", "hosts = [\"db1\"]"));
    connect_and_be_silent(&server.uri, NQN, HOST);
    wait_for_log(&server, &["it did not authenticate in time"]);
    assert!(server.stop());
}

#[test]
fn subsystem_and_discovery_can_require_a_proof_of_each_host() {
    let keys = Keys::new();
    let server = serve(&keys.config(
        "discovery-require = \"auth-both\"\nauth-hashes = [\"sha384\"]\nauth-groups = [\"ffdhe2048\"]",
        "require = \"auth-both\"",
        "hosts = \"any\"\nrequire = \"auth\"",
    ));
    let both = keys.options(Some("host"), Some("target"));
    succeed(&as_str(&info(&server, &both)));
    let discover: Vec<String> =
        ["discover".to_owned(), server.uri.clone()].into_iter().chain(both.iter().cloned()).collect();
    assert!(succeed(&as_str(&discover)).contains(NQN));
    // One way is not enough.
    let error = fail(&as_str(&info(&server, &keys.options(Some("host"), None))));
    assert!(error.contains("the target does not accept the key"), "{error}");
    for command in [["info", &format!("{}/{NQN}", server.uri)], ["discover", &server.uri]] {
        let error = fail(&[&command[..], &["--host-nqn", STRANGER]].concat());
        assert!(error.contains("ask the target to allow this host's NQN"), "{error}");
    }
    wait_for_log(&server, &["the host does not ask this target to prove itself"]);
    assert!(server.stop());
}

#[test]
fn unusable_keys_stop_the_start_and_are_named() {
    let keys = Keys::new();
    let config = keys.config("", "", "hosts = [\"db1\"]");
    fs::write(keys.path("target"), "DHHC-1:00:secret").unwrap();
    let error = fail(&["serve", "--config", text(&config)]);
    let expected =
        format!("cannot use auth-target-key of host db1: {}: not a key", keys.path("target").display());
    assert!(error.contains(&expected) && !error.contains("secret"), "{error}");
    fs::remove_file(keys.path("host")).unwrap();
    let error = fail(&["serve", "--config", text(&config)]);
    assert!(
        error.contains("cannot use auth-key of host db1") && error.contains("cannot read the key"),
        "{error}"
    );
}

#[test]
fn keys_can_be_credentials_of_systemd() {
    let keys = Keys::new();
    let config = keys.config("", "", "hosts = [\"db1\"]");
    let file = fs::read_to_string(&config).unwrap();
    let file = file.replace(&format!("file:{}", keys.path("host").display()), "credential:host.key");
    let file = file.replace(&format!("file:{}", keys.path("target").display()), "credential:none.key");
    fs::write(&config, file).unwrap();
    let error = fail(&["serve", "--config", text(&config)]);
    assert!(error.contains("$CREDENTIALS_DIRECTORY is not set: add LoadCredential=host.key:FILE"), "{error}");
    // systemd gives the group bits of an access list.
    fs::set_permissions(keys.path("host"), std::os::unix::fs::PermissionsExt::from_mode(0o440)).unwrap();
    let serve = ["serve", "--config", text(&config)];
    let output = program().env("CREDENTIALS_DIRECTORY", keys.directory.path()).args(serve).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("auth-target-key of host db1") && error.contains("none.key: cannot read"),
        "{error}"
    );
}

/// One line for all open subsystems, with two commands; none once they require a proof.
#[test]
fn open_subsystem_beyond_loopback_is_named_with_its_remedy() {
    let keys = Keys::new();
    let lines = |config: &Path, part: &str| {
        let log = serve(config).log_at_end();
        log.lines().filter(|line| line.contains(part)).map(str::to_owned).collect::<Vec<_>>()
    };
    let beyond = |config: PathBuf| {
        let file = fs::read_to_string(&config).unwrap();
        fs::write(&config, file.replace("127.0.0.1:0", "0.0.0.0:0")).unwrap();
        config
    };
    let open = lines(&beyond(keys.config("", "", "hosts = \"any\"")), "without authentication on");
    let [line] = &open[..] else { panic!("{open:?}") };
    for part in [
        &format!("subsystem {NQN}: any host reads and writes it"),
        "ctl host add NAME nqn=NQN auth-key=file:KEY` and `",
        &format!("ctl subsystem set {NQN} require=auth`"),
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let closed = beyond(keys.config("strict = true\ndiscovery-require = \"auth\"", "", "hosts = [\"db1\"]"));
    assert_eq!(lines(&closed, "without authentication on").len(), 0);
    let server =
        Server::start_alone(&["mem:1M", "--listen", "0.0.0.0:0", "--nqn", NQN, "--control-socket", "off"]);
    let log = server.log_at_end();
    assert!(
        log.contains("any host reads and writes it without authentication or encryption on 0.0.0.0:"),
        "{log}"
    );
    assert!(log.contains("key gen KEY`, and `"), "{log}");
}
