//! Relay between an engine and its target, which counts and delays commands.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isolane_host::{Buffer, Client, Options, Request, Uri, Via, Wait};

use crate::NQN;
use crate::clients::{TEST_TIMEOUT, options, wait_for};
use crate::harness::Harness;

/// Length of a command without data, in bytes.
const CAPSULE_BYTES: usize = 72;

/// Forwards both directions, counts bytes of the host, and withholds data of the target while `answers` is locked.
struct Relay {
    address: SocketAddr,
    sent: Arc<AtomicUsize>,
    answers: Arc<Mutex<()>>,
}

impl Relay {
    fn start(target: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (sent, answers) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(())));
        let relay = Relay { address: listener.local_addr().unwrap(), sent, answers };
        let (sent, answers) = (Arc::clone(&relay.sent), Arc::clone(&relay.answers));
        std::thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                let target = TcpStream::connect(target).unwrap();
                let (sent, answers) = (Arc::clone(&sent), Arc::clone(&answers));
                let (from, to) = (host.try_clone().unwrap(), target.try_clone().unwrap());
                std::thread::spawn(move || {
                    forward(&from, &to, |count| {
                        sent.fetch_add(count, Ordering::SeqCst);
                    });
                });
                std::thread::spawn(move || forward(&target, &host, |_| drop(answers.lock().unwrap())));
            }
        });
        relay
    }
}

/// Until one of them ends.
fn forward(mut from: &TcpStream, mut to: &TcpStream, before: impl Fn(usize)) {
    let mut bytes = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        before(count);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn shallow_clients_do_not_wait_for_each_other() {
    let harness = Harness::new();
    let relay = Relay::start(harness.address());
    let uri: Uri = format!("nvme+tcp://{}/{NQN}", relay.address).parse().unwrap();
    let uri = Uri { via: Some(Via::EngineAt(harness.path())), ..uri };
    let connect =
        || Client::connect(&uri, Options { depth: 1, keep_alive: Duration::ZERO, ..options() }).unwrap();
    let mut clients = [connect(), connect()];
    let withheld = relay.answers.lock().unwrap();
    let before = relay.sent.load(Ordering::SeqCst);
    for client in &mut clients {
        client.submit(0, Request::Read { lba: 0, buffer: Buffer::contiguous(4096) }, 0);
        assert_eq!(client.turn(&mut Vec::new(), Wait::None), 0);
    }
    let end = Instant::now() + TEST_TIMEOUT;
    while relay.sent.load(Ordering::SeqCst) < before + 2 * CAPSULE_BYTES {
        assert!(Instant::now() < end, "the second command waits for the first one's answer");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(withheld);
    for client in &mut clients {
        assert!(wait_for(client, 1)[0].result.is_ok());
    }
}
