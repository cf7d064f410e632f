//! `isolane serve`: its output, and errors of its arguments.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Server, fail, kill, pattern, program, run, succeed, text};

#[test]
fn prints_volumes_and_a_valid_bench_line() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk.img");
    let disk = format!("{},size=4M,ro", text(&disk));
    fs::write(dir.path().join("disk.img"), vec![0; 4 << 20]).unwrap();
    let server = Server::start(&["mem:1M", &disk, "null:1T,nsid=7"]);
    let printed = server.printed.join("\n");
    for line in [
        "namespace 1: mem:1M, memory, 1.0 MiB\n",
        "disk.img, file, 4.0 MiB, read-only\n",
        "namespace 7: null:1T, null, 1.0 TiB\n",
        "sudo nvme discover -t tcp -a 127.0.0.1 -s ",
        "sudo nvme connect -t tcp -a 127.0.0.1 -s ",
        "sudo nvme disconnect -n nqn.",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    let bench = server.printed.last().unwrap();
    assert!(bench.ends_with("?nsid=1'"), "quoted for zsh: {bench}");
    let ran = Command::new("sh").args(["-c", &format!("{bench} --time 10ms")]).output().unwrap();
    assert!(ran.status.success(), "{bench}: {}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn replaces_wildcard_with_reachable_address() {
    let arguments = ["serve", "mem:1M", "--listen", "0.0.0.0:0", "--log-level", "off"];
    let mut child = program().args(arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut printed = String::new();
    while !printed.contains("isolane bench ") {
        let mut byte = [0];
        assert_eq!(stdout.read(&mut byte).unwrap(), 1, "{printed}");
        printed.push(char::from(byte[0]));
    }
    kill(&child, "TERM");
    assert!(child.wait().unwrap().success());
    let to = |line: &str| line.split("hosts connect to ").nth(1).map(str::to_owned);
    let addresses: Vec<String> = printed.lines().filter_map(to).collect();
    assert!(!addresses.is_empty() && printed.starts_with("listening on 0.0.0.0:"), "{printed}");
    assert!(addresses.iter().all(|address| !address.starts_with("0.0.0.0")), "{printed}");
    assert!(printed.contains(&format!("isolane info nvme+tcp://{}/nqn.", addresses[0])), "{printed}");
}

#[test]
fn listens_at_names_and_ports() {
    for listen in ["localhost:0", ":0", "0"] {
        let arguments = ["serve", "mem:1M", "--listen", listen, "--log-level", "off"];
        let mut child = program().args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut line = [0; 23];
        stdout.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"listening on 127.0.0.1:", "{listen}");
        kill(&child, "TERM");
        assert!(child.wait().unwrap().success());
    }
    assert!(fail(&["serve", "--pool", "3M"]).contains("use at least 4M"));
    assert!(fail(&["serve", "--port", "4420"]).contains("'--listen'"));
}

#[test]
fn rejects_likely_mistakes() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty");
    fs::write(&empty, []).unwrap();
    for (volume, remedy) in [
        ("mem:100000T", "choose less, or serve a sparse file"),
        ("mem:0", "use at least one block"),
        ("delay:5ms:mem:1000", "multiple of the block size"),
        ("/dev/isolane-none", "check its name with lsblk"),
        ("/dev/isolane-none,size=1M", "check its name with lsblk"),
        (text(&empty), "truncate -s 10G"),
        ("Mem:1G,size=1G", "unknown kind \"Mem\"; use mem:, or write ./Mem:1G"),
        ("nvme-tcp://127.0.0.1:1/nqn.2014-08.org.example:disk,size=1M", "use nvme+tcp:, or write ./nvme"),
        ("disk.img,size=10Gb", "b stands for bits"),
        ("nvme+tcp://127.0.0.1:1/nqn.2014-08.org.example:disk", "is a target listening there?"),
    ] {
        let error = fail(&["serve", "--listen", "127.0.0.1:0", volume]);
        assert!(error.contains(remedy) && error.lines().count() == 1, "{volume}: {error}");
    }
    for address in ["127.0.0.1:4420", "localhost:4420", "4420", "127.0.0.1:4420,size=1M"] {
        let error = fail(&["serve", address]);
        assert!(error.contains("looks like an address; give an address with --listen"), "{error}");
    }
    for arguments in
        [&["serve", "--allow-host", "foo"][..], &["info", "nvme+tcp://[::1]", "--host-nqn", "foo"]]
    {
        let error = fail(arguments);
        assert!(error.contains("`foo`") && error.contains("nqn.2014-08.org.example:host"), "{error}");
    }
    let error = fail(&["serve", "--listen", "127.0.0.1:0", "--nqn", "foo", "mem:1M"]);
    assert!(error.contains("`foo`") && error.contains("nqn.2014-08.org.example:disk"), "{error}");
}

#[test]
fn signal_during_start_ends_the_program() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let volume = format!("nvme+tcp://{}/nqn.2014-08.org.example:disk", silent.local_addr().unwrap());
    let commands =
        [["serve", &volume, "--listen", "127.0.0.1:0"], ["export", &volume, "--nbd", "127.0.0.1:0"]];
    for arguments in commands {
        for (signal, status) in [("INT", 130), ("TERM", 143)] {
            let mut child = program().args(arguments).stdout(Stdio::piped()).spawn().unwrap();
            let opened = silent.accept().unwrap();
            kill(&child, signal);
            assert_eq!(child.wait().unwrap().code(), Some(status), "{arguments:?}");
            drop(opened);
        }
    }
}

#[test]
fn distinguishes_decimal_and_binary_units() {
    let server = Server::start(&["null:10GB", "null:10GiB", "null:10G"]);
    let info: serde_json::Value = serde_json::from_str(&succeed(&["info", &server.uri, "--json"])).unwrap();
    let bytes = |at: usize| info["namespaces"][at]["bytes"].as_u64().unwrap();
    assert_eq!([bytes(0), bytes(1), bytes(2)], [10_000_000_000, 10 << 30, 10 << 30]);
}

#[test]
fn two_targets_have_different_names() {
    let nqn = |server: &Server| {
        let info: serde_json::Value =
            serde_json::from_str(&succeed(&["info", &server.uri, "--json"])).unwrap();
        info["nqn"].as_str().unwrap().to_owned()
    };
    let (one, two) = (Server::start(&["mem:1M"]), Server::start(&["mem:1M"]));
    assert_ne!(nqn(&one), nqn(&two));
}

#[test]
fn clients_log_warnings_only() {
    let server = Server::start(&["mem:1M"]);
    for command in [&["info"][..], &["discover"], &["bench", "--time", "10ms"]] {
        let output = run(&[command, &[&server.uri]].concat());
        assert!(output.status.success() && output.stderr.is_empty(), "{command:?}: {output:?}");
    }
}

/// Each restart opens the same files in the same order.
#[test]
fn serves_stripe_over_three_files() {
    let dir = tempfile::tempdir().unwrap();
    let members =
        ["a", "b", "c"].map(|name| format!("(delay:1ms:({},size=2M))", dir.path().join(name).display()));
    let volume = format!("stripe:64k:{}", members.join(";"));
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, pattern(6 << 20)).unwrap();
    let identity = |server: &Server| {
        let info: serde_json::Value =
            serde_json::from_str(&succeed(&["info", &server.uri, "--json"])).unwrap();
        info["namespaces"][0]["uuid"].as_str().unwrap().to_owned()
    };
    let server = Server::start(&[&volume]);
    succeed(&["copy", text(&from), &server.volume(1)]);
    let before = identity(&server);
    assert!(server.stop());
    let server = Server::start(&[&volume]);
    assert_eq!(identity(&server), before);
    succeed(&["copy", &server.volume(1), text(&to)]);
    assert!(server.stop() && fs::read(&to).unwrap() == pattern(6 << 20));
    let first = fs::read(dir.path().join("a")).unwrap();
    assert!(first[64 << 10..128 << 10] == pattern(6 << 20)[192 << 10..256 << 10]);
}

#[test]
fn explains_invalid_nested_volumes() {
    let error = fail(&["serve", "stripe:64k:mem:1M;mem:2M", "--listen", "127.0.0.1:0"]);
    assert!(error.contains("use members of the same size"), "{error}");
    let error = fail(&["serve", "delay:5:mem:1M", "--listen", "127.0.0.1:0"]);
    assert!(error.contains("invalid duration \"5\""), "{error}");
}

#[test]
fn serves_filters_of_some_requests() {
    let server = Server::start(&[
        "delay:3600s:(stall:3600s:(fault:1:mem:1M,on=flush),one-in=1,on=write,from=3600s),on=flush,group=a",
        "read-only:mem:1M,from=0s,for=3600s,group=a",
        "--pool",
        "4M",
    ]);
    let bench = |nsid: u32, rw: &str| {
        program().args(["bench", &server.volume(nsid), "--time", "10ms", "--rw", rw]).output().unwrap()
    };
    assert!(bench(1, "randrw").status.success());
    assert!(bench(2, "read").status.success());
    let output = bench(2, "write");
    assert!(!output.status.success(), "{output:?}");
}

/// Runs `isolane serve` with a limit of open files.
fn serve_with_open_files(limit: usize) -> std::process::Child {
    let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
    let arguments = ["serve", "mem:1M", "--listen", "127.0.0.1:0", "--cores", "0"];
    let program = program();
    Command::new("sh")
        .args(["-c", &script])
        .arg(program.get_program())
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn rejects_limit_of_open_files_below_one_host() {
    for limit in [20, 40, 64] {
        let output = serve_with_open_files(limit).wait_with_output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(&format!("limit of {limit} open files")), "{error}");
        assert!(error.contains("ulimit -n 16"), "{error}");
    }
}

/// The lowest limit that is accepted lets a host connect and read.
#[test]
fn serves_one_host_at_lowest_descriptor_limit() {
    let error = serve_with_open_files(64).wait_with_output().unwrap().stderr;
    let error = String::from_utf8(error).unwrap();
    let needed = error.split("one host needs ").nth(1).and_then(|rest| rest.split(';').next());
    let mut child = serve_with_open_files(needed.unwrap().parse().unwrap());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let address = lines.next().unwrap().replace("listening on ", "");
    succeed(&["bench", &format!("nvme+tcp://{address}"), "--time", "10ms"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Listening addresses and the NQN of a server, which is then stopped.
fn served(arguments: &[&str]) -> (Vec<String>, String) {
    let mut command = program();
    command.args(["serve", "--log-level", "off", "--mode", "sleep"]).args(arguments).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut addresses, mut nqn) = (Vec::new(), None);
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap) {
        addresses.extend(line.strip_prefix("listening on ").map(str::to_owned));
        nqn = nqn.or_else(|| line.split(" -n ").nth(1).map(str::to_owned));
        if line.contains("isolane bench ") {
            break;
        }
    }
    kill(&child, "TERM");
    assert!(child.wait().unwrap().success());
    (addresses, nqn.unwrap())
}

#[test]
fn names_subsystem_by_volumes_not_port() {
    let dir = tempfile::tempdir().unwrap();
    let disk = format!("{},size=1M", text(&dir.path().join("disk")));
    let (first, second) = (["--listen", "127.0.0.1:0"], ["--listen", "[::1]:0"]);
    let nqn = |listen: [&str; 2], volume: &str| served(&[&listen[..], &[volume]].concat()).1;
    assert_eq!(nqn(first, &disk), nqn(second, &disk));
    assert_ne!(nqn(first, "mem:1M"), nqn(first, "mem:1M"), "memory on port 0");
}

#[test]
fn wildcard_serves_ipv4_and_ipv6() {
    let server = Server::start(&["mem:1M", "--listen", "[::]:0"]);
    let listeners: Vec<_> =
        server.printed.iter().filter_map(|line| line.strip_prefix("listening on ")).collect();
    let port = listeners[1].strip_prefix("[::]:").unwrap();
    for host in ["127.0.0.1", "[::1]"] {
        let info = succeed(&["info", &format!("nvme+tcp://{host}:{port}")]);
        assert!(info.contains(&format!("address      {host}:{port}\n")), "{info}");
    }
    // Each host finds the listeners of its family.
    let found = succeed(&["discover", &format!("nvme+tcp://127.0.0.1:{port}")]);
    let first = listeners[0].strip_prefix("127.0.0.1:").unwrap();
    let ports = [first, port].map(|port| format!("127.0.0.1 port {port} "));
    assert!(ports.iter().all(|port| found.contains(port)) && found.lines().count() == 2, "{found}");
    let found = succeed(&["discover", &format!("nvme+tcp://[::1]:{port}")]);
    assert!(found.contains(&format!("::1 port {port} ")) && found.lines().count() == 1, "{found}");
}

#[test]
fn counters_show_age_of_oldest_command() {
    let server = Server::start(&["stall:600s:mem:1M,every=601s"]);
    let mut bench =
        program().args(["bench", &server.volume(1), "--time", "10s"]).stdout(Stdio::null()).spawn().unwrap();
    let log = || fs::read_to_string(server.log.path()).unwrap();
    while !log().contains("namespace 1 oldest command: ") {
        kill(&server.child, "USR1");
        std::thread::sleep(Duration::from_millis(50));
    }
    bench.kill().unwrap();
    bench.wait().unwrap();
}

#[test]
fn rejects_file_that_is_named_twice() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, link) = (dir.path().join("a.img"), dir.path().join("b.img"));
    fs::write(&disk, vec![0; 1 << 20]).unwrap();
    fs::hard_link(&disk, &link).unwrap();
    let serve = |volumes: [&str; 2]| fail(&[&["serve", "--listen", "127.0.0.1:0"], &volumes[..]].concat());
    let error = serve([text(&disk), text(&disk)]);
    assert!(error.contains("open already; name each file once"), "{error}");
    let error = serve([text(&disk), text(&link)]);
    // They are opened at the same time.
    let later = error.contains("b.img: the same file as ") && error.contains("a.img, which");
    let earlier = error.contains("a.img: the same file as ") && error.contains("b.img, which");
    assert!(later || earlier, "{error}");
}

#[test]
fn info_without_nqn_names_unlisted_host() {
    let server = Server::start(&["mem:1M", "--allow-host", "nqn.2014-08.org.example:friend"]);
    let host = "nqn.2014-08.org.example:other";
    let error = fail(&["info", &server.uri, "--host-nqn", host]);
    assert!(error.contains(&format!("offered to host {host}; allow that host at the target")), "{error}");
    let found = succeed(&["discover", &server.uri, "--host-nqn", host]);
    assert_eq!(found, format!("nothing is offered to host {host}\n"));
    succeed(&["info", &server.uri, "--host-nqn", "nqn.2014-08.org.example:friend"]);
}

#[test]
fn info_names_protocol_of_web_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").unwrap();
        // Until the host has closed.
        let _ = peer.read_to_end(&mut Vec::new());
    });
    let error = fail(&["info", &format!("nvme+tcp://{address}/nqn.2014-08.org.example:disk")]);
    assert!(error.contains("the peer speaks HTTP, not NVMe/TCP; check address and port"), "{error}");
    server.join().unwrap();
}

#[test]
fn errors_escape_control_characters_of_arguments() {
    for volume in ["mem:\u{1b}[2J1M", "/no/such\u{1b}[2J/file"] {
        let error = fail(&["serve", volume]);
        assert!(error.contains("\\u{1b}[2J") && !error.contains('\u{1b}'), "{error:?}");
    }
    for wrong in [&["--pool", "\u{1b}[2J\u{7}"][..], &["--listen", "\u{1b}[2J\u{7}"], &["--\u{1b}[2J\u{7}"]] {
        let error = fail(&[&["serve"], wrong].concat());
        assert!(!error.contains(['\u{1b}', '\u{7}']), "{error:?}");
    }
}

#[test]
fn service_manager_hears_of_start_life_and_stop() {
    let dir = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    let mut target = program();
    target.args(["serve", "mem:1M", "--listen", "127.0.0.1:0", "--log-level", "off"]);
    target.env("NOTIFY_SOCKET", dir.path().join("notify")).env("WATCHDOG_USEC", "40000");
    let mut child = target.stdout(Stdio::piped()).spawn().unwrap();
    let receive = || {
        let mut message = [0; 256];
        let len = manager.recv(&mut message).unwrap();
        String::from_utf8(message[..len].to_vec()).unwrap()
    };
    let ready = receive();
    assert!(ready.starts_with("READY=1\nSTATUS=serving 1 volume as nqn."), "{ready}");
    for _ in 0..3 {
        assert_eq!(receive().trim_end(), "WATCHDOG=1");
    }
    kill(&child, "TERM");
    let last = std::iter::repeat_with(receive).find(|message| message.trim_end() != "WATCHDOG=1");
    assert_eq!(last.unwrap().trim_end(), "STOPPING=1\nSTATUS=completing commands in flight");
    assert!(child.wait().unwrap().success());
}

#[test]
fn listens_on_sockets_of_the_service_manager() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = |address: &str| {
        let mut command = Command::new("sh");
        // As systemd does: the socket is descriptor 3, and the environment names the process.
        command.args(["-c", "exec 3<&0 < /dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\""]);
        command.arg(program().get_program());
        command.args([
            "serve",
            "mem:1M",
            "--log-level",
            "warn",
            "--control-socket",
            "off",
            "--listen",
            address,
        ]);
        command.stdin(OwnedFd::from(listener.try_clone().unwrap()));
        command
    };
    // A host that connects before the start waits.
    let early = TcpStream::connect(address).unwrap();
    let mut target = serve(&address.to_string()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(target.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim_end(), format!("listening on {address}"));
    drop(early);
    succeed(&["info", &format!("nvme+tcp://{address}")]);
    kill(&target, "TERM");
    assert!(target.wait().unwrap().success());
    let mut other = serve("127.0.0.1:0").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    BufReader::new(other.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    kill(&other, "TERM");
    let log = String::from_utf8(other.wait_with_output().unwrap().stderr).unwrap();
    assert!(log.contains(&format!("{address}: a socket that listens there was passed on")), "{log}");
}

#[test]
fn serial_numbers_differ_between_subsystems() {
    let serial = |nqn: &str| {
        let server = Server::start(&["mem:1M", "--nqn", nqn]);
        let info: serde_json::Value =
            serde_json::from_str(&succeed(&["info", &server.uri, "--json"])).unwrap();
        info["controller"]["serial"].as_str().unwrap().to_owned()
    };
    let first = serial("nqn.2014-08.org.example:first");
    assert_eq!(first, serial("nqn.2014-08.org.example:first"));
    assert_ne!(first, serial("nqn.2014-08.org.example:second"));
}

#[test]
fn serve_logs_the_kernel_interface() {
    let mut child = program()
        .args(["serve", "mem:1M", "--listen", "127.0.0.1:0", "--io", "epoll"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    kill(&child, "TERM");
    let log = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    assert!(log.contains("using epoll"), "{log}");
}
