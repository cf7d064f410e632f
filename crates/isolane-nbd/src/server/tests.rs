use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use isolane_memory::{Payload, Pool};
use isolane_reactor::{Mode, ReactorConfig};
use isolane_volume::{Completer, Request, Step, Volume, VolumeDescription, open, spec};

use super::*;

struct Fixture {
    dir: tempfile::TempDir,
    server: Option<Server>,
}

impl Fixture {
    fn new(volume: Arc<dyn Volume>) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let listen = vec![Address::Unix(dir.path().join("nbd"))];
        let reactor = ReactorConfig { mode: Mode::Sleep, ..ReactorConfig::default() };
        let server = Server::start(ServerConfig { volume, name: String::new(), listen, reactor }).unwrap();
        Fixture { dir, server: Some(server) }
    }

    fn of(text: &str) -> Fixture {
        Fixture::new(open(&spec::parse(text).unwrap()).unwrap())
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.dir.path().join("nbd")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// A connection that selects the export with simple replies.
    fn client(&self) -> UnixStream {
        let mut stream = self.connect();
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        let mut reply = [0; 18 + 10];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..8], *b"NBDMAGIC");
        stream
    }

    fn shutdown(&mut self) -> Result<(), ShutdownError> {
        let result = self.server.take().unwrap().shutdown();
        assert!(!self.dir.path().join("nbd").exists(), "the socket is left");
        result
    }
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;

fn send(stream: &mut UnixStream, code: u16, offset: u64, len: u32, data: &[u8]) {
    let mut bytes = [&[0x25, 0x60, 0x95, 0x13, 0, 0][..], &code.to_be_bytes(), &[7; 8]].concat();
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes.extend(data);
    stream.write_all(&bytes).unwrap();
}

/// Returns the error code of a reply.
fn receive(stream: &mut UnixStream) -> u32 {
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!((&reply[..4], &reply[8..]), (&[0x67, 0x44, 0x66, 0x98][..], &[7; 8][..]));
    u32::from_be_bytes(reply[4..8].try_into().unwrap())
}

#[test]
fn connections_share_the_volume() {
    let mut fixture = Fixture::of("mem:64M");
    let (mut writer, mut reader) = (fixture.client(), fixture.client());
    send(&mut writer, WRITE, 1 << 20, 4096, &[3; 4096]);
    assert_eq!(receive(&mut writer), 0);
    send(&mut reader, FLUSH, 0, 0, b"");
    assert_eq!(receive(&mut reader), 0);
    send(&mut reader, READ, 1 << 20, 4096, b"");
    let mut data = [0; 4096];
    assert_eq!(receive(&mut reader), 0);
    reader.read_exact(&mut data).unwrap();
    assert_eq!(data, [3; 4096]);
    // The others continue after one ends, in each way.
    send(&mut writer, DISCONNECT, 0, 0, b"");
    assert_eq!(writer.read(&mut data).unwrap(), 0);
    fixture.client().write_all(&[0; 28]).unwrap();
    drop(fixture.client());
    send(&mut reader, FLUSH, 0, 0, b"");
    assert_eq!(receive(&mut reader), 0);
    fixture.shutdown().unwrap();
}

#[test]
fn limits_connections() {
    let fixture = Fixture::of("mem:1M");
    let clients: Vec<UnixStream> = (0..128).map(|_| fixture.client()).collect();
    let mut refused = fixture.connect();
    assert_eq!(refused.read(&mut [0; 18]).unwrap(), 0);
    drop(clients);
    // A new connection is accepted once the server has seen the end of another.
    let is_accepted = (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        fixture.connect().read(&mut [0; 18]).unwrap() > 0
    });
    assert!(is_accepted);
}

#[test]
fn slow_writes_stop_large_ones_only() {
    const LEN: u32 = 32 << 20;
    let mut fixture = Fixture::of("mem:64M");
    let mut large: Vec<UnixStream> = (0..5).map(|_| fixture.client()).collect();
    // Four of them get all shared memory; the fifth waits.
    for stream in &mut large {
        send(stream, WRITE, 0, LEN, &[1]);
    }
    let mut small = fixture.client();
    for _ in 0..100 {
        send(&mut small, WRITE, 32 << 20, 512, &[2; 512]);
        send(&mut small, READ, 32 << 20, 512, b"");
        let mut data = [0; 512];
        assert_eq!((receive(&mut small), receive(&mut small)), (0, 0));
        small.read_exact(&mut data).unwrap();
        assert_eq!(data, [2; 512]);
    }
    let data = vec![1; LEN as usize - 1];
    for at in [2, 4] {
        large[at].write_all(&data).unwrap();
        assert_eq!(receive(&mut large[at]), 0);
    }
    // The others are incomplete, and change nothing.
    assert!(fixture.shutdown().is_ok());
}

/// The requests of closed connections hold memory until the volume completes them.
#[test]
fn requests_of_closed_connections_count() {
    let volume = Waiting::new();
    let mut fixture = Fixture::new(volume.clone());
    for count in 1..=128 {
        let mut client = fixture.client();
        send(&mut client, FLUSH, 0, 0, b"");
        client.write_all(&[0; 28]).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert_eq!(volume.completers.lock().unwrap().len(), count);
    }
    assert_eq!(fixture.connect().read(&mut [0; 18]).unwrap(), 0, "one more connection is accepted");
    (0..128).for_each(|_| volume.complete());
    // A new connection is accepted once the server has seen a completion.
    let is_accepted = (0..1000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        fixture.connect().read(&mut [0; 18]).unwrap() > 0
    });
    assert!(is_accepted);
    let thread = thread::spawn(move || fixture.shutdown());
    volume.complete();
    thread.join().unwrap().unwrap();
}

/// A volume whose requests wait for the test.
struct Waiting {
    description: VolumeDescription,
    completers: Mutex<Vec<Completer>>,
}

impl Waiting {
    fn new() -> Arc<Waiting> {
        let description = open(&spec::parse("mem:1M").unwrap()).unwrap().description().clone();
        Arc::new(Waiting { description, completers: Mutex::default() })
    }

    /// Waits for a request and completes it.
    fn complete(&self) {
        loop {
            if let Some(completer) = self.completers.lock().unwrap().pop() {
                return completer.complete(Ok(Payload::default()));
            }
            thread::yield_now();
        }
    }
}

impl Volume for Waiting {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn start(&self, request: Request, _: &mut Pool) -> Step {
        let (completer, step) = Step::pending(&request);
        self.completers.lock().unwrap().push(completer);
        step
    }
}

#[test]
fn shutdown_completes_requests_and_flushes() {
    let volume = Waiting::new();
    let mut fixture = Fixture::new(volume.clone());
    let mut client = fixture.client();
    send(&mut client, WRITE, 0, 512, &[1; 512]);
    while volume.completers.lock().unwrap().is_empty() {
        thread::yield_now();
    }
    let thread = thread::spawn(move || {
        let result = fixture.shutdown();
        (fixture, result)
    });
    volume.complete();
    assert_eq!(receive(&mut client), 0);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    // The flush.
    volume.complete();
    thread.join().unwrap().1.unwrap();
}

#[test]
fn failed_flush_is_an_error() {
    let volume = Waiting::new();
    let mut fixture = Fixture::new(volume.clone());
    let thread = thread::spawn(move || fixture.shutdown());
    loop {
        if let Some(completer) = volume.completers.lock().unwrap().pop() {
            drop(completer);
            break;
        }
        thread::yield_now();
    }
    let error = thread.join().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("mem:1M: flush failed: "), "{error}");
}
