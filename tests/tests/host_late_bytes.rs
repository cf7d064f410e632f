//! Late bytes: a relay between host and target delays bytes, closes the connection to the host, and delivers the
//! bytes to the target a second later, as a network or a send buffer can.
//!
//! A late write must not overwrite a newer one.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use isolane_host::{
    Buffer, Client, Completion, Mode, Options, Reconnect, Request, RequestError, Wait, WriteReplay,
};
use isolane_target::{Target, TargetConfig};
use isolane_volume::{open, spec};

const NQN: &str = "nqn.2024-01.org.example:late";

/// Delay of the bytes.
const LATENESS: Duration = Duration::from_millis(1000);

/// Relay that closes connections of older generations.
#[derive(Default)]
struct Relay {
    generation: AtomicU64,
    /// Connections of older generations delay the bytes of the host.
    holding_below: AtomicU64,
    held: AtomicU64,
    delivered_late: AtomicU64,
}

impl Relay {
    fn start(target: SocketAddr) -> (SocketAddr, Arc<Relay>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let relay = Arc::<Relay>::default();
        let accepting = Arc::clone(&relay);
        std::thread::spawn(move || {
            for host in listener.incoming().flatten() {
                let relay = Arc::clone(&accepting);
                let target = TcpStream::connect(target).unwrap();
                let (mut from, mut to) = (target.try_clone().unwrap(), host.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
                std::thread::spawn(move || relay.carry(host, target));
            }
        });
        (address, relay)
    }

    /// Forwards bytes from the host to the target until the connection is closed.
    fn carry(&self, mut host: TcpStream, mut target: TcpStream) {
        let generation = self.generation.load(Ordering::SeqCst);
        let mut held = Vec::new();
        let mut bytes = vec![0; 65_536];
        host.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
        let is_holding = || generation < self.holding_below.load(Ordering::SeqCst);
        while self.generation.load(Ordering::SeqCst) == generation {
            match host.read(&mut bytes) {
                Ok(count) if count > 0 && is_holding() => {
                    held.extend_from_slice(&bytes[..count]);
                    self.held.fetch_add(count as u64, Ordering::SeqCst);
                }
                Ok(count) if count > 0 => target.write_all(&bytes[..count]).unwrap(),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                // The host closes all connections when it loses one. The target is notified late.
                Ok(_) | Err(_) if is_holding() => break,
                Ok(_) | Err(_) => return drop(target.shutdown(Shutdown::Both)),
            }
        }
        let _ = host.shutdown(Shutdown::Both);
        std::thread::sleep(LATENESS);
        if target.write_all(&held).is_ok() {
            self.delivered_late.fetch_add(held.len() as u64, Ordering::SeqCst);
        }
        // The target processes the bytes before the end of the connection.
        std::thread::sleep(Duration::from_millis(100));
        let _ = target.shutdown(Shutdown::Both);
    }

    fn hold(&self) {
        self.holding_below.store(self.generation.load(Ordering::SeqCst) + 1, Ordering::SeqCst);
    }

    /// Closes all connections; forwards new ones without delay.
    fn cut(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }
}

fn set_up(writes: WriteReplay) -> (Target, Arc<Relay>, Client) {
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.subsystems[0].volumes.push((1, open(&spec::parse("mem:16M").unwrap()).unwrap()));
    config.listen.push("127.0.0.1:0".parse().unwrap());
    let target = Target::start(config).unwrap();
    let (address, relay) = Relay::start(target.local_addrs()[0]);
    let options = Options {
        mode: Mode::Sleep,
        // A proof by time would take longer than the test.
        keep_alive: Duration::from_secs(3600),
        reconnect: Reconnect { writes, ..Reconnect::default() },
        ..Options::default()
    };
    let uri = format!("nvme+tcp://{address}/{NQN}").parse().unwrap();
    (target, relay, Client::connect(&uri, options).unwrap())
}

fn write(lba: u64, fill: u8) -> Request {
    let mut buffer = Buffer::contiguous(8192);
    buffer.as_mut_slice().unwrap().fill(fill);
    Request::Write { lba, buffer, fua: false }
}

fn turn_until(client: &mut Client, completions: &mut Vec<Completion>, count: usize, time: Duration) {
    let deadline = Instant::now() + time;
    while completions.len() < count && Instant::now() < deadline {
        client.turn(completions, Wait::Until(deadline));
    }
}

/// Sends a write through the delaying relay, closes its connections, and writes the same blocks again. Returns
/// the completions by tag.
fn overtake(client: &mut Client, relay: &Relay) -> Vec<Completion> {
    let mut completions = Vec::new();
    relay.hold();
    client.submit(0, write(0, 1), 1);
    while relay.held.load(Ordering::SeqCst) < 8192 {
        turn_until(client, &mut completions, 1, Duration::from_millis(5));
    }
    relay.cut();
    turn_until(client, &mut completions, 1, Duration::from_millis(50));
    client.submit(0, write(8, 2), 2);
    client.submit(0, write(1000, 3), 3);
    turn_until(client, &mut completions, 3, Duration::from_secs(30));
    completions
}

fn first_bytes(client: &mut Client, lba: u64) -> Vec<u8> {
    let mut completions = Vec::new();
    client.submit(0, Request::Read { lba, buffer: Buffer::contiguous(8192) }, 0);
    turn_until(client, &mut completions, 1, Duration::from_secs(30));
    completions.remove(0).buffer.unwrap().to_vec()
}

#[test]
fn late_write_does_not_overwrite_a_newer_one() {
    let (_target, relay, mut client) = set_up(WriteReplay::Never);
    let completions = overtake(&mut client, &relay);
    let order: Vec<u64> = completions.iter().map(|completion| completion.tag).collect();
    assert_eq!(order, [1, 3, 2], "other blocks do not wait, the same blocks do");
    assert!(matches!(completions[0].result, Err(RequestError::FateUnknown)), "{completions:?}");
    assert!(completions[1].result.is_ok() && completions[2].result.is_ok(), "{completions:?}");
    assert!(relay.delivered_late.load(Ordering::SeqCst) > 0, "the relay delivered nothing late");
    assert_eq!(first_bytes(&mut client, 8), vec![2; 8192]);
}

#[test]
fn repeated_write_follows_the_late_bytes() {
    let (_target, relay, mut client) = set_up(WriteReplay::WhenGone);
    let completions = overtake(&mut client, &relay);
    assert_eq!(completions.len(), 3, "the target does not say that the old controller is gone");
    assert!(completions.iter().all(|completion| completion.result.is_ok()), "{completions:?}");
    assert_eq!(completions[0].tag, 3);
    assert!(relay.delivered_late.load(Ordering::SeqCst) > 0, "repeated while the old path was alive");
    assert_eq!(first_bytes(&mut client, 1000), vec![3; 8192]);
}
