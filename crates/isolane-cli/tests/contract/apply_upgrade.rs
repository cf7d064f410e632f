//! Upgrades of a target with a configuration file.

use std::fs;

use crate::apply::{A, B, HOST, Target, namespace, start};
use crate::{Server, fail, succeed, text};

#[test]
fn upgrades_keep_what_the_target_serves() {
    let target = start();
    let before = target.file();
    // Not applied, so it has no effect.
    let more = "\n[[subsystem.namespace]]\nnsid = 9\nvolume = \"null:1M\"\n";
    // The pool waits for a restart.
    target.write(&format!("{}{more}", before.replace("mode =", "pool = \"64M\"\nmode =")));
    target.upgrade();
    assert_eq!(target.namespaces(), [namespace(A, 1, 1)]);
    assert!(target.refused(&["namespace", "add", "null:1M"]).contains("has changes that are not applied"));
    target.apply(&[]);
    target.upgrade();
    assert_eq!(target.namespaces(), [namespace(A, 1, 1), namespace(A, 9, 1)]);

    target.ctl(&[
        "host",
        "add",
        "db1",
        &format!("nqn={HOST}"),
        "limits={ associations = 1, memory = \"4M\" }",
    ]);
    target.ctl(&["port", "add", "left", "listen=127.0.0.1:0"]);
    let left = target.address_of("left");
    let namespaces = "namespace=[{ nsid = 1, volume = \"null:2M\", qos = { iops = 700 } }]";
    target.ctl(&["subsystem", "add", B, "ports=left", "hosts=db1", "serial=S1", namespaces]);
    target.ctl(&["subsystem", "set", A, "ports=left,local"]);
    target.ctl(&["namespace", "resize", "1", "2M", "--subsystem", A]);
    target.ctl(&["namespace", "remove", "9", "--runtime", "--subsystem", A]);
    target.ctl(&["namespace", "add", "null:4M", "--runtime", "--subsystem", A]);
    target.ctl(&["namespace", "offline", "1", "--subsystem", B]);
    target.ctl(&["subsystem", "set", B, "serial=S2"]);
    let seen = || {
        let info = succeed(&["info", &format!("nvme+tcp://{left}/{A}")]);
        let info: Vec<_> =
            info.lines().filter(|line| line.starts_with("namespace")).map(str::to_owned).collect();
        let refused = fail(&["info", &target.uri(B), "--host-nqn", HOST]);
        (target.status(), target.apply(&["--dry-run"]), info, refused)
    };
    let (file, before) = (target.file(), seen());
    for _ in 0..2 {
        target.upgrade();
        assert_eq!(seen(), before);
    }
    assert_eq!(target.file(), file);
    target.ctl(&["namespace", "online", "1", "--subsystem", B]);
    let log = succeed(&["info", &format!("nvme+tcp://{left}/{B}"), "--host-nqn", HOST]);
    assert!(log.contains("S1") && !log.contains("S2"), "{log}");
    // What was changed at runtime ends with the next application.
    target.apply(&[]);
    assert_eq!(target.namespaces(), [namespace(A, 1, 2), namespace(A, 9, 1), namespace(B, 1, 2)]);
    target.ctl(&["subsystem", "set", A, "ports=left"]);
    target.ctl(&["port", "remove", "local"]);
    target.upgrade();
    assert_eq!(target.namespaces(), [namespace(A, 1, 2), namespace(A, 9, 1), namespace(B, 1, 2)]);
    succeed(&["info", &format!("nvme+tcp://{left}/{A}")]);
    assert!(target.server.stop());
}

#[test]
fn upgrade_keeps_a_missing_volume() {
    let target = start();
    let path = target.path("isolane.toml");
    let file = target.file().replace("[server]\n", "[server]\nskip-missing = true\n");
    let file =
        file.replace("nsid = 1\n", "nsid = 2\nvolume = \"null:1M\"\n[[subsystem.namespace]]\nnsid = 1\n");
    let Target { server, directory } = target;
    assert!(server.stop());
    fs::rename(directory.path().join("a.img"), directory.path().join("b.img")).unwrap();
    fs::write(&path, file.replace(",size=1M", "")).unwrap();
    let target = Target { server: Server::start_alone(&["--config", text(&path)]), directory };
    let before = target.status();
    let reason = before["namespaces"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("no such file"), "{reason}");
    target.upgrade();
    assert_eq!(target.status(), before);
    fs::rename(target.path("b.img"), target.path("a.img")).unwrap();
    target.ctl(&["namespace", "online", "1"]);
    assert_eq!(target.namespaces(), [namespace(A, 1, 1), namespace(A, 2, 1)]);
    target.upgrade();
    assert_eq!(target.namespaces(), [namespace(A, 1, 1), namespace(A, 2, 1)]);
}
