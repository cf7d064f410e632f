//! Completions of a real bash, with names of a running target.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use crate::{Server, succeed, text};

const NQN: &str = "nqn.2014-08.org.example:disks";

/// Returns the completions of a line in bash, which splits words at colons, as it does by default.
fn complete(script: &Path, line: &str) -> Vec<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_isolane")).parent().unwrap();
    let path = format!("{}:{}", text(program), std::env::var("PATH").unwrap());
    // Readline has the last word from the last space, = or colon.
    let last = line.rsplit([' ', '=', ':']).next().unwrap();
    let call = "source \"$1\"; COMP_LINE=$2 COMP_POINT=${#2}; _isolane isolane \"$3\" \"\"; \
                [[ ${#COMPREPLY[@]} = 0 ]] || printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", call, "bash", text(script), line, last]).env("PATH", path);
    let output = bash_output(&mut bash);
    output.lines().map(str::to_owned).collect()
}

fn bash_output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    // The function sets options of a completion, of which there is none here.
    let errors: Vec<&str> = errors.lines().filter(|line| !line.contains("compopt")).collect();
    assert!(errors.is_empty(), "{errors:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bash_completes_names_of_a_running_target() {
    let dir = tempfile::tempdir().unwrap();
    let (script, file, socket) =
        (dir.path().join("isolane.bash"), dir.path().join("isolane.toml"), dir.path().join("serve.sock"));
    fs::write(&script, succeed(&["completions", "bash"])).unwrap();
    let config = format!(
        "server = {{ mode = \"sleep\", control-socket = \"{}\" }}\n\
         [[port]]\nname = \"left\"\nlisten = \"127.0.0.1:0\"\n\
         [[host]]\nname = \"db1\"\nnqn = \"nqn.2014-08.org.example:db1\"\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nports = [\"left\"]\nhosts = \"any\"\n\
         [[subsystem.namespace]]\nnsid = 7\nvolume = \"mem:1M\"\n\
         [[subsystem]]\nnqn = \"{NQN}2\"\nports = [\"left\"]\nhosts = \"any\"\n\
         [[subsystem.namespace]]\nnsid = 9\nvolume = \"mem:1M\"\n",
        socket.display()
    );
    fs::write(&file, config).unwrap();
    let server = Server::start_alone(&["--config", text(&file)]);
    let complete_ctl =
        |words: &str| complete(&script, &format!("isolane ctl --socket {} {words}", socket.display()));
    for (words, expected) in [
        ("namespace offline ", &["7", "9"][..]),
        (&format!("namespace --subsystem {NQN} offline "), &["7"]),
        ("namespace --subsystem nqn.2014-08.org.ex", &[NQN, "nqn.2014-08.org.example:disks2"]),
        ("namespace --subsystem nqn.2014-08.org.example:di", &["disks", "disks2"]),
        ("subsystem remove nqn.2014-08.org.example:", &["disks", "disks2"]),
        ("host set d", &["db1"]),
        ("host set db1 auth-k", &["auth-key="]),
        ("port remove ", &["left"]),
        (&format!("subsystem set {NQN} ports=l"), &["left"]),
        (&format!("subsystem set {NQN} hosts=db1,a"), &["db1,any"]),
        ("namespace off", &["offline"]),
    ] {
        let found = complete_ctl(words);
        let found: Vec<&String> = found.iter().filter(|found| !found.starts_with('-')).collect();
        assert_eq!(found, expected, "{words:?}");
    }
    assert!(complete(&script, "isolane ctl na").contains(&"namespace".to_owned()));
    let files = complete(&script, &format!("isolane serve --config {}/iso", dir.path().display()));
    assert!(files.contains(&text(&file).to_owned()), "{files:?}");
    assert!(server.stop());
    // Without a target there are only options.
    assert!(complete_ctl("namespace offline ").iter().all(|found| found.starts_with('-')));
}

/// A host chooses its NQN itself, and bash would execute it.
#[test]
fn bash_completes_no_commands() {
    let dir = tempfile::tempdir().unwrap();
    let (script, socket) = (dir.path().join("isolane.bash"), dir.path().join("serve.sock"));
    fs::write(&script, succeed(&["completions", "bash"])).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let target = std::thread::spawn(move || {
        let (mut peer, body) = (listener.accept().unwrap().0, CONNECTIONS);
        let _ = peer.read(&mut [0; 1024]);
        write!(peer, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    });
    let found = complete(&script, &format!("isolane ctl --socket {} disconnect ", text(&socket)));
    target.join().unwrap();
    let found: Vec<&String> = found.iter().filter(|found| !found.starts_with('-')).collect();
    assert_eq!(found, ["nqn.x:a", "[::1]:1"]);
    // Bash also executes names of files.
    let files = dir.path().join("files");
    fs::create_dir(&files).unwrap();
    for name in ["a.toml", "a;$(date)"] {
        fs::write(files.join(name), "").unwrap();
    }
    let line = format!("isolane serve --config {}/", text(&files));
    assert_eq!(complete(&script, &line), [text(&files.join("a.toml"))]);
}

const CONNECTIONS: &str = r#"{"connections": [
    {"host": "nqn.x;$(touch /tmp/x)", "address": "127.0.0.1:1`date`"},
    {"host": "nqn.x:a", "address": "[::1]:1"}
]}"#;

#[test]
fn each_shell_asks_the_program() {
    for shell in ["bash", "zsh", "fish"] {
        let script = succeed(&["completions", shell]);
        assert!(
            script.contains(&format!("ISOLANE_COMPLETE=\"{shell}\""))
                || script.contains(&format!("ISOLANE_COMPLETE={shell}")),
            "{script}"
        );
    }
}
