//! `isolane config dump --running`: the file of a running target.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Server, fail, succeed, text};

const NQN: &str = "nqn.2014-08.org.example:disks";
const HOST: &str = "nqn.2014-08.org.example:a";

fn dump(socket: &Path) -> String {
    succeed(&["config", "dump", "--running", "--socket", text(socket)])
}

/// Returns the namespaces, without the time of their commands.
fn namespaces(socket: &Path) -> Value {
    let status = succeed(&["ctl", "status", "--json", "--socket", text(socket)]);
    let mut status: Value = serde_json::from_str(&status).unwrap();
    status["namespaces"].take()
}

/// Starts a target with a file, and returns it with its control socket.
fn serve_file(dir: &Path, file: &str, old_socket: &Path) -> (Server, PathBuf) {
    let (path, socket) = (dir.join("dumped.toml"), dir.join("second.sock"));
    fs::write(&path, file.replace(text(old_socket), text(&socket))).unwrap();
    (Server::start_alone(&["--config", text(&path)]), socket)
}

#[test]
fn file_of_a_running_target_serves_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, image) = (dir.path().join("serve.sock"), dir.path().join("a,b.img"));
    let volume = format!("{},size=1M,nsid=4", text(&image).replace(',', ",,"));
    let member = dir.path().join("s.img");
    fs::write(&member, vec![0; 1 << 20]).unwrap();
    let nested = format!(
        "delay:0ms:(stripe:64k:mem:1M;{}),on=write,uuid=1b4e28ba-2fa1-4d2b-883f-0016d3cca427",
        member.display()
    );
    let server = Server::start(&[
        "--control-socket",
        text(&socket),
        "--nqn",
        NQN,
        "--allow-host",
        HOST,
        "--queue-depth",
        "7",
        "mem:2M,ro",
        &volume,
        &nested,
        "mem:1M",
    ]);
    let ctl =
        |arguments: &[&str]| succeed(&[&["ctl", "--socket", text(&socket), "namespace"], arguments].concat());
    ctl(&["add", "null:1M,nsid=9,block-size=4096"]);
    ctl(&["remove", "3"]);
    ctl(&["replace", "1", "mem:3M"]);
    ctl(&["resize", "4", "2M"]);
    ctl(&["read-only", "9"]);
    let (file, before) = (dump(&socket), namespaces(&socket));
    let address = server.uri.strip_prefix("nvme+tcp://").unwrap().to_owned();
    assert!(file.contains(&format!("listen = \"{address}\"")), "{file}");
    assert!(
        file.contains(",size=2M\"") && file.contains("volume = \"null:1M,block-size=4096,ro\""),
        "{file}"
    );
    assert_eq!(before.as_array().unwrap().len(), 4);
    assert!(server.stop());

    let (server, second) = serve_file(dir.path(), &file, &socket);
    assert_eq!(namespaces(&second), before);
    assert_eq!(server.uri, format!("nvme+tcp://{address}"));
    let file = file.replace(text(&socket), text(&second));
    assert_eq!(dump(&second), file, "the dump of the file is the file");
    succeed(&["info", "--host-nqn", HOST, &format!("{}/{NQN}", server.uri)]);
    fail(&["info", &format!("{}/{NQN}", server.uri)]);
    // Changes of --runtime are in it.
    succeed(&["ctl", "namespace", "add", "mem:1M,nsid=11", "--runtime", "--socket", text(&second)]);
    let with_added = dump(&second);
    assert!(
        with_added.contains("nsid = 11")
            && !fs::read_to_string(dir.path().join("dumped.toml")).unwrap().contains("nsid = 11")
    );
    assert!(server.stop());
}

#[test]
fn file_of_a_protected_mirror_has_paths_from_the_root() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("serve.sock");
    // A path from the working directory.
    let depth = std::env::current_dir().unwrap().components().count() - 1;
    let near = format!("{}{}", "../".repeat(depth), text(dir.path()).trim_start_matches('/'));
    let mirror = format!("mirror:({near}/a,size=1M);({near}/b,size=1M),bitmap={near}/map,create=yes,{UUID}");
    let server = Server::start(&["--control-socket", text(&socket), "--nqn", NQN, &mirror]);
    succeed(&["ctl", "namespace", "read-only", "1", "--socket", text(&socket)]);
    let file = dump(&socket);
    let volume = file.lines().find(|line| line.starts_with("volume = ")).unwrap();
    assert!(
        volume.starts_with("volume = \"read-only:(mirror:(/") && volume.ends_with(&format!("),{UUID}\"")),
        "{file}"
    );
    assert!(volume.contains(";(/") && volume.contains("bitmap=/"), "{file}");
    assert!(server.stop());
    let (server, second) = serve_file(dir.path(), &file, &socket);
    let served = namespaces(&second);
    assert!(served[0]["state"] == "online" && served[0]["read_only"] == true, "{served}");
    assert_eq!(dump(&second), file.replace(text(&socket), text(&second)));
    assert!(server.stop());
}

const UUID: &str = "uuid=1b4e28ba-2fa1-4d2b-883f-0016d3cca427";

#[test]
fn running_target_keeps_its_file_over_an_upgrade() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, image) = (dir.path().join("serve.sock"), dir.path().join("a.img"));
    let server = Server::start(&["--control-socket", text(&socket), &format!("{},size=1M", text(&image))]);
    succeed(&["ctl", "namespace", "add", "null:1M,nsid=9", "--socket", text(&socket)]);
    let before = dump(&socket);
    succeed(&["ctl", "upgrade", "--socket", text(&socket)]);
    // The identity of memory is in it from now on.
    let after = dump(&socket);
    let until_namespaces = |file: &str| file.split_once("[[subsystem.namespace]]").unwrap().0.to_owned();
    assert_eq!(until_namespaces(&after), until_namespaces(&before));
    assert!(after.contains("nsid = 9\nvolume = \"null:1M,uuid="), "{after}");
    assert!(server.stop());
    let error = fail(&["config", "dump", "--running", "mem:1M"]);
    assert!(error.contains("--running") && error.contains("cannot be used with"), "{error}");
}
