//! `isolane export`: its output, its end, and errors of its arguments.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use super::ctl::until;
use super::{Server, fail, kill, program, text};

/// A running export, killed on drop, with its output.
struct Export(Child, Vec<String>);

impl Export {
    fn start(arguments: &[&str]) -> Export {
        let mut command = program();
        command.args(["export", "--mode", "sleep", "--log-level", "warn"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let last =
            if arguments.contains(&"--vhost-user-blk") { "-device vhost-user-blk-pci" } else { "nbdcopy " };
        let mut printed = Vec::new();
        for line in lines {
            let is_last = line.contains(last);
            printed.push(line);
            if is_last {
                break;
            }
        }
        Export(child, printed)
    }

    /// Sends a signal, and returns whether the program succeeded, and its log.
    fn stop(mut self) -> (bool, String) {
        kill(&self.0, "TERM");
        let is_success = self.0.wait().unwrap().success();
        let mut log = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (is_success, log)
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn prints_uris_and_removes_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, socket) = (dir.path().join("disk.img"), dir.path().join("a b.sock"));
    fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let disk = format!("{},ro", text(&disk));
    let export = Export::start(&[&disk, "--nbd", text(&socket), "--nbd", "127.0.0.1:0"]);
    let printed = export.1.join("\n");
    let uri = format!("nbd+unix:///?socket={}/a%20b.sock", dir.path().display());
    assert!(printed.starts_with(&format!("exporting on {uri}\nexporting on nbd://127.0.0.1:")), "{printed}");
    assert!(printed.contains("disk.img, file, 1.0 MiB, read-only\n"), "{printed}");
    assert!(printed.contains(&format!("nbdcopy '{uri}' ./copy.img")), "{printed}");
    let mut greeting = [0; 8];
    UnixStream::connect(&socket).unwrap().read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGIC");
    assert_eq!(export.stop(), (true, String::new()));
    assert!(!socket.exists());
}

/// Starts an export for machines below a limit of open files, and returns once it accepts connections.
fn start_with_limit(limit: &str, socket: &str) -> Export {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_isolane")]);
    command.args(["export", "mem:1M", "--vhost-user-blk", socket]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It prints the first line once it is started.
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    Export(child, vec![line])
}

#[test]
fn raises_limit_of_open_files() {
    let dir = tempfile::tempdir().unwrap();
    let export = start_with_limit("-Sn 64", text(&dir.path().join("vm.sock")));
    let limits = fs::read_to_string(format!("/proc/{}/limits", export.0.id())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let fields: Vec<&str> = files.split_whitespace().collect();
    assert_eq!(fields[3], fields[4], "{files}");
}

#[test]
fn few_open_files_limit_machines_and_queues() {
    let dir = tempfile::tempdir().unwrap();
    let (_, log) = start_with_limit("-n 1024", text(&dir.path().join("vm.sock"))).stop();
    let warning = "1024 open files allow 7 machines with 8 queues each; raise the hard limit to 14048";
    assert!(log.contains(warning), "{log}");
}

#[test]
fn keeps_journal_of_a_remote_volume_until_a_clean_end() {
    let (server, dir) = (Server::start(&["mem:1M"]), tempfile::tempdir().unwrap());
    let (socket, journal) = (dir.path().join("vm.sock"), dir.path().join("vm.sock.journal"));
    let arguments = [&server.uri, "--vhost-user-blk", text(&socket)];
    let associations = || fs::read(&journal).unwrap().windows(8).filter(|tag| tag == b"isolane\n").count();
    let mut killed = Export::start(&arguments);
    assert_eq!(associations(), 1);
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    // The kernel can close the sockets of a process after its end.
    until(|| UnixStream::connect(&socket).err());
    let export = Export::start(&arguments);
    // The target has ended the other.
    until(|| (associations() == 1).then_some(()));
    assert_eq!(export.stop(), (true, String::new()));
    assert!(!journal.exists() && !socket.exists());
    fs::write(&journal, "data").unwrap();
    let error = fail(&["export", &server.uri, "--nbd", text(&socket)]);
    assert!(error.contains("it is not a journal of associations"), "{error}");
    assert!(error.contains("choose another socket"), "{error}");
    // Not used for other volumes.
    assert_eq!(Export::start(&["mem:1M", "--nbd", text(&socket)]).stop(), (true, String::new()));
    assert_eq!(fs::read(&journal).unwrap(), b"data");
}

#[test]
fn prints_options_of_qemu() {
    let dir = tempfile::tempdir().unwrap();
    let (vm, nbd) = (dir.path().join("a,b.sock"), dir.path().join("nbd.sock"));
    for other in [&[][..], &["--nbd", text(&nbd)]] {
        let export = Export::start(&[&["mem:1M", "--vhost-user-blk", text(&vm)][..], other].concat());
        let printed = export.1.join("\n");
        assert!(printed.contains(&format!("exporting on vhost-user-blk {}\n", vm.display())), "{printed}");
        let chardev =
            format!("-chardev 'socket,id=disk0,path={}/a,,b.sock,reconnect=1'", dir.path().display());
        assert!(printed.contains(&chardev), "{printed}");
        assert_eq!((vm.exists(), nbd.exists()), (true, !other.is_empty()));
        assert_eq!(export.stop(), (true, String::new()));
        assert_eq!((vm.exists(), nbd.exists()), (false, false));
    }
}

#[test]
fn warns_about_reachable_addresses() {
    let (is_success, log) = Export::start(&["mem:1M", "--nbd", "0.0.0.0:0", "--nbd", "127.0.0.1:0"]).stop();
    assert!(is_success && log.lines().count() == 1, "{log}");
    assert!(log.contains("is reachable from other machines, without authentication or encryption"), "{log}");
}

#[test]
fn names_wrong_arguments_and_remedies() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd.sock");
    let socket = text(&socket);
    let (missing, long) = (format!("{}/none/nbd.sock", dir.path().display()), "x".repeat(257));
    for (arguments, expected) in [
        (&["mem:1M"][..], "--nbd <SOCKET|ADDR:PORT>"),
        (&["--nbd", socket], "<VOLUME>"),
        (&["mem:1M", "--nbd", ""], "is not an address; use the form 127.0.0.1:10809"),
        (&["mem:1M", "--nbd", "host:port"], "is not an address; use the form 127.0.0.1:10809"),
        (&["mem:1M", "--nbd", "70000"], "is not an address; use the form 127.0.0.1:10809"),
        (&["mem:1M", "--nbd", &missing], "its directory does not exist; create it"),
        (&["mem:1M", "--nbd", "192.0.2.1:1"], "cannot listen on 192.0.2.1:1: "),
        (&["mem:1M", "--nbd", socket, "--name", &long], "the name has 257 bytes; use at most 256"),
        (&["mem:1M", "--vhost-user-blk", ""], "the path is empty; use the path of a socket, as ./vm.sock"),
        (&["mem:1M", "--vhost-user-blk", &missing], "its directory does not exist; create it"),
        (&["mem:1M", "--vhost-user-blk", &long], "the path is longer than 107 bytes; shorten it"),
        (&["mem:1M", "--vhost-user-blk", socket, "--nbd", socket], "is given twice; remove one of both"),
        (&["mem:1M", "--nbd", "127.0.0.1:9", "--nbd", "9"], "nbd://127.0.0.1:9 is given twice"),
        (&["mem:1M", "--nbd", "nbd://127.0.0.1:9"], "is not an address; use the form 127.0.0.1:10809"),
        (&["mem:1M", "--nbd", "isolane.invalid:9"], "use a name of this machine, or 127.0.0.1:10809"),
        (&["mem:1M,nsid=2", "--nbd", socket], "an export has no namespace ID; remove nsid"),
        (&["127.0.0.1:10809", "--nbd", socket], "give an address with --nbd, as in --nbd 127.0.0.1:10809"),
        (&["mem:1X", "--nbd", socket], "mem:1X"),
        (&["mem:1M", "--nbd", socket, "--mode", "fast"], "possible values"),
    ] {
        let error = fail(&[&["export"][..], arguments].concat());
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
