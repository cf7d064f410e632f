//! `kill -9` at each step of an upgrade, and programs that read another version of the state.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::{Server, fail, program, succeed, text};

const ISOLANE: &str = env!("CARGO_BIN_EXE_isolane");

/// Writes a program that the target becomes instead of `isolane`.
fn script(directory: &Path, name: &str, lines: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, format!("#!/bin/bash\n{lines}\nexec {ISOLANE} \"$@\"\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn silent(arguments: &[&str]) -> Child {
    program().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Starts as a service manager would do: with the same arguments after each end.
fn serve(directory: &Path, listen: &str) -> Server {
    let volume = format!("{},size=64M", directory.join("a.img").display());
    let socket = directory.join("serve.sock");
    let options = ["--mode", "sleep", "--log-level", "info", "--control-socket", text(&socket)];
    Server::start_alone(&[&options[..], &["--listen", listen, &volume]].concat())
}

#[test]
fn killed_upgrade_is_as_a_killed_target() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut server = serve(path, "127.0.0.1:0");
    let (printed, address) =
        (server.printed.clone(), server.uri.trim_start_matches("nvme+tcp://").to_owned());
    let volume = server.volume(1);
    // A write that may have been lost is repeated after twice the timeout.
    let timeouts = ["--reconnect", "60s", "--keep-alive", "1s"];
    let load = [&["--rw", "randrw", "--verify", "--time", "300ms"], &timeouts[..]].concat();
    let late = |step: &str, ms: u32| {
        format!("case \"$*\" in *--{step}=*) (sleep 0.{ms:03}; kill -9 $TARGET) > /dev/null 2>&1 & ;; esac")
    };
    let mut steps = vec![
        "case \"$*\" in *--rehearse=*) kill -9 $PPID ;; esac".to_owned(),
        "case \"$*\" in *--resume-from=*) kill -9 $$ ;; esac".to_owned(),
    ];
    // While the target freezes, and while the other program starts.
    steps.push(format!("TARGET=$PPID\n{}", late("rehearse", 15)));
    steps.extend([5, 40].map(|ms| format!("TARGET=$$\n{}", late("resume-from", ms))));
    let modified = || fs::metadata(path.join("a.img")).unwrap().modified().unwrap();
    for (at, lines) in steps.iter().enumerate() {
        let program = script(path, &format!("step-{at}"), lines);
        let socket = path.join("serve.sock");
        let before = modified();
        let bench = silent(&[&["bench", &volume], &load[..]].concat());
        let deadline = Instant::now() + Duration::from_secs(60);
        while modified() == before {
            assert!(Instant::now() < deadline, "{lines}");
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut client = silent(&["ctl", "--socket", text(&socket), "upgrade", text(&program)]);
        let status = server.child.wait().unwrap();
        assert!(!status.success(), "{lines}");
        let _ = client.kill();
        let _ = client.wait();
        server = serve(path, &address);
        assert_eq!(server.printed, printed, "{lines}");
        let output = bench.wait_with_output().unwrap();
        assert!(output.status.success(), "{lines}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(server.stop());
}

#[test]
fn program_with_another_version_of_the_state_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let server = serve(path, "127.0.0.1:0");
    let socket = path.join("serve.sock");
    let upgrade = |program: &str| ["ctl", "--socket", text(&socket), "upgrade", program].map(str::to_owned);
    for version in [1, 99] {
        // The state follows a header, whose length is in front.
        let lines = format!(
            "for argument; do case $argument in --rehearse=*) fd=${{argument#*=}} ;; esac; done\n\
             header=$(od -An -t u8 -N 8 /proc/self/fd/$fd | tr -d ' ')\n\
             cat /proc/self/fd/$fd > {state}\n\
             printf '\\x{version:02x}' | dd of={state} bs=1 seek=$((8 + header + 8)) conv=notrunc status=none\n\
             set -- \"${{@/--rehearse=$fd/--rehearse=9}}\"\nexec 9< {state}",
            state = path.join("state").display(),
        );
        let program = script(path, "other", &lines);
        let error = fail(&upgrade(text(&program)).each_ref().map(String::as_str));
        let expected = format!("the state has version {version}, and this program reads version");
        assert!(error.contains(&expected), "{error}");
        succeed(&["bench", &server.volume(1), "--rw", "randrw", "--verify", "--time", "100ms"]);
    }
    let printed = succeed(&upgrade(ISOLANE).each_ref().map(String::as_str));
    assert!(printed.ends_with(", upgrade 1\n"), "{printed}");
    assert!(server.stop());
}
