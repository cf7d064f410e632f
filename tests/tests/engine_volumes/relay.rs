//! What goes between an engine and its target, seen and withheld.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isolane_host::{Buffer, Client, Options, Request, Uri, Via, Wait};

use crate::NQN;
use crate::clients::{PATIENCE, options, wait_for};
use crate::world::World;

/// Of a command without data.
const CAPSULE_BYTES: usize = 72;

/// It never takes an outcome and always submits: it gets as many as its ring has room for, and no more; others
/// get their turns.
/// Between an engine and its target: forwards, counts what the host sends, and withholds what the target answers
/// while it is told to.
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
fn those_who_have_one_request_at_a_time_do_not_wait_for_each_other() {
    let world = World::new();
    let relay = Relay::start(world.address());
    let uri: Uri = format!("nvme+tcp://{}/{NQN}", relay.address).parse().unwrap();
    let uri = Uri { via: Some(Via::EngineAt(world.path())), ..uri };
    let connect =
        || Client::connect(&uri, Options { depth: 1, keep_alive: Duration::ZERO, ..options() }).unwrap();
    let mut clients = [connect(), connect()];
    let withheld = relay.answers.lock().unwrap();
    let before = relay.sent.load(Ordering::SeqCst);
    for client in &mut clients {
        client.submit(0, Request::Read { lba: 0, buffer: Buffer::contiguous(4096) }, 0);
        assert_eq!(client.turn(&mut Vec::new(), Wait::None), 0);
    }
    let end = Instant::now() + PATIENCE;
    while relay.sent.load(Ordering::SeqCst) < before + 2 * CAPSULE_BYTES {
        assert!(Instant::now() < end, "the second command waits for the first one's answer");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(withheld);
    for client in &mut clients {
        assert!(wait_for(client, 1)[0].result.is_ok());
    }
}
