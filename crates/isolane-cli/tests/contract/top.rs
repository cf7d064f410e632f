//! `isolane top`: text, and the terminal after each end.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::sample::Sample;
use super::{kill_pid, succeed, text};

/// Directory with a snapshot of 20 s.
fn snapshot() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let sample = Sample { steps: 20, stalled: 3, stall: 15..20, ..Sample::default() };
    let path = directory.path().join("snapshot.json");
    std::fs::write(&path, serde_json::to_vec(&sample.snapshot()).unwrap()).unwrap();
    let path = text(&path).to_owned();
    (directory, path)
}

/// A shell with a terminal, which runs `isolane top` and prints the settings of the terminal afterwards.
struct Terminal {
    child: Child,
    seen: String,
}

impl Terminal {
    fn start(from: &str) -> Terminal {
        Terminal::start_by("", from)
    }

    /// `prefix` is a command that starts the program.
    fn start_by(prefix: &str, from: &str) -> Terminal {
        let program = env!("CARGO_BIN_EXE_isolane");
        let shell = format!(
            "stty rows 24 cols 80; sh -c 'echo pid $$.; exec {prefix} {program} top --from {from}'; echo status $?.; stty -a; echo end."
        );
        let mut command = Command::new("script");
        command.env_remove("NO_COLOR");
        command.args(["-qfc", &shell, "/dev/null"]).env("TERM", "xterm-256color");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Terminal { child, seen: String::new() }
    }

    /// Reads until the output has `text`.
    fn wait_for(&mut self, text: &str) {
        let output = self.child.stdout.as_mut().unwrap();
        while !self.seen.contains(text) {
            let mut bytes = [0; 4096];
            let count = output.read(&mut bytes).unwrap();
            assert!(count > 0, "the output ends without {text:?}: {:?}", self.seen);
            self.seen += &String::from_utf8_lossy(&bytes[..count]);
        }
    }

    fn press(&mut self, keys: &str) {
        self.child.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Returns the text between two others.
    fn between(&self, start: &str, end: &str) -> &str {
        let (_, after) = self.seen.split_once(start).expect(start);
        after.split_once(end).expect(end).0
    }

    /// Waits for the end, and checks the terminal.
    fn status(mut self) -> u32 {
        self.wait_for("end.");
        let restored = self.seen.split_once("\u{1b}[?1049h").expect("the alternate screen").1;
        assert!(restored.contains("\u{1b}[?1049l"), "left the alternate screen");
        assert!(restored.contains("\u{1b}[?25h"), "the cursor is visible");
        let settings = restored.split_once("status ").expect("the end of the program").1;
        assert!(settings.contains(" icanon") && settings.contains(" echo "), "{settings}");
        let status = self.between("status ", ".").parse().unwrap();
        assert!(self.child.wait().unwrap().success());
        status
    }
}

#[test]
fn top_prints_text_without_terminal() {
    let (_directory, from) = snapshot();
    for arguments in [vec!["top", "--from", &from], vec!["top", "--from", &from, "--once"]] {
        let shown = succeed(&arguments);
        assert!(shown.lines().any(|line| line.contains("disk3") && line.contains("ms")), "{shown}");
        assert!(shown.contains("Slow operations") && !shown.contains('\u{1b}'), "{shown}");
    }
}

#[test]
fn top_restores_terminal_after_keys() {
    let (_directory, from) = snapshot();
    for end in ["q", "\u{3}"] {
        let mut terminal = Terminal::start(&from);
        terminal.wait_for("Volumes");
        terminal.press("2");
        // A row that was empty before, so that all of it is drawn.
        terminal.wait_for("disk3");
        terminal.press(end);
        assert_eq!(terminal.status(), 0);
    }
}

/// Returns whether a color is set.
fn has_color(output: &str) -> bool {
    let sequences = output.split("\u{1b}[").skip(1).filter_map(|text| text.split_once('m'));
    let mut numbers = sequences.flat_map(|(numbers, _)| numbers.split(';').map(str::parse::<u8>));
    numbers.any(|number| matches!(number, Ok(30..=38 | 40..=48 | 90..=107)))
}

#[test]
fn top_shows_no_color_with_no_color() {
    let (_directory, from) = snapshot();
    for (prefix, expected) in [("", true), ("env NO_COLOR=", true), ("env NO_COLOR=1", false)] {
        let mut terminal = Terminal::start_by(prefix, &from);
        terminal.wait_for("Volumes");
        terminal.press("2");
        terminal.wait_for("disk3");
        terminal.press("q");
        terminal.wait_for("end.");
        assert_eq!(has_color(&terminal.seen), expected, "{prefix}: {:?}", terminal.seen);
        assert_eq!(terminal.status(), 0);
    }
}

#[test]
fn top_restores_terminal_after_signals() {
    let (_directory, from) = snapshot();
    for (signal, number) in [("TERM", 15), ("INT", 2)] {
        let mut terminal = Terminal::start(&from);
        terminal.wait_for("Volumes");
        kill_pid(terminal.between("pid ", ".").parse().unwrap(), signal);
        assert_eq!(terminal.status(), 128 + number);
    }
}

/// Serves snapshots, each a second after the one before, to `count` connections.
fn serve(path: &Path, count: u64) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for steps in 1..=count {
            let (mut socket, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                socket.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            assert!(request.starts_with(b"GET /snapshot.json?steps=no "));
            let snapshot = Sample { steps, stall: 0..0, ..Sample::default() }.snapshot();
            let body = serde_json::to_string(&snapshot).unwrap();
            let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            socket.write_all((head + &body).as_bytes()).unwrap();
        }
    })
}

#[test]
fn top_prints_rates_of_a_program() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("serve-4711.sock");
    let server = serve(&socket, 2);
    let shown = succeed(&["top", text(&socket), "--once", "--window", "10ms"]);
    server.join().unwrap();
    assert!(shown.contains("6.4k ops/s") && shown.contains("over 1.0 s"), "{shown}");
}
