//! Captures of connections between host and target, for other dissectors.
//!
//! Each `real-*.pcap` contains one connection; together they cover all combinations of digests. The tshark suite
//! reads them.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use isolane_host::{BlockingVolume, Options, Uri, discover};
use isolane_target::{Target, TargetConfig};
use isolane_tests::capture::{Capture, From};
use isolane_volume::{open, spec};

const NQN: &str = "nqn.2024-01.org.example:captured";

#[test]
fn records_connections_with_all_digests() {
    for (header_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)] {
        let name = format!("real-{}{}", u8::from(header_digest), u8::from(data_digest));
        let target = serve();
        let (proxy, connections) = record(&name, target.local_addrs()[0], 3);
        let uri: Uri = format!("nvme+tcp://{proxy}").parse().unwrap();
        let options = Options { header_digest, data_digest, ..Options::default() };
        assert_eq!(discover(&uri, &options).unwrap().len(), 1);
        use_volume(proxy, options);
        connections.join().unwrap();
    }
}

fn serve() -> Target {
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.subsystems[0].volumes = vec![(1, open(&spec::parse("mem:4M").unwrap()).unwrap())];
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    Target::start(config).unwrap()
}

/// Runs writes in capsules and by R2T, small and large reads, and all other requests.
fn use_volume(address: SocketAddr, options: Options) {
    let uri: Uri = format!("nvme+tcp://{address}/{NQN}").parse().unwrap();
    let volume = BlockingVolume::connect(&uri, options).unwrap();
    for bytes in [512, 4096, 65_536, 300_032] {
        let written: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        volume.write_at(&written, 512).unwrap();
        let mut read = vec![0; bytes];
        volume.read_at(&mut read, 512).unwrap();
        assert_eq!(read, written);
    }
    volume.write_durable_at(&[7; 512], 0).unwrap();
    volume.flush().unwrap();
    volume.write_zeroes(0, 4096).unwrap();
    volume.deallocate(8192, 8192).unwrap();
    volume.close();
}

/// Listens in front of `target` for `count` connections and records each.
fn record(name: &str, target: SocketAddr, count: usize) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let name = name.to_owned();
    let recorder = thread::spawn(move || {
        let ends: Vec<_> = (0..count)
            .map(|number| {
                let (host, _) = listener.accept().unwrap();
                relay(host, TcpStream::connect(target).unwrap(), capture(&format!("{name}-{number}")))
            })
            .collect();
        ends.into_iter().flatten().for_each(|end| end.join().unwrap());
    });
    (address, recorder)
}

type SharedCapture = Arc<Mutex<Capture<BufWriter<File>>>>;

fn capture(name: &str) -> SharedCapture {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("captures");
    fs::create_dir_all(&dir).unwrap();
    let file = File::create(dir.join(format!("{name}.pcap"))).unwrap();
    Arc::new(Mutex::new(Capture::new(BufWriter::new(file)).unwrap()))
}

fn relay(host: TcpStream, target: TcpStream, capture: SharedCapture) -> [JoinHandle<()>; 2] {
    let (host_out, target_out) = (host.try_clone().unwrap(), target.try_clone().unwrap());
    let other = Arc::clone(&capture);
    [
        thread::spawn(move || copy(host, target_out, From::Host, &capture)),
        thread::spawn(move || copy(target, host_out, From::Target, &other)),
    ]
}

/// Records bytes before it forwards them, so that requests precede responses.
fn copy(mut from: TcpStream, mut to: TcpStream, end: From, capture: &SharedCapture) {
    let mut bytes = [0; 8192];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        capture.lock().unwrap().send(end, &bytes[..count]).unwrap();
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
