//! Proxy between host and target that damages one PDU of the target.
//!
//! It forwards the bytes of the host unchanged, and the target's PDUs one by one.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolane_wire::pdu::CommonHeader;

use crate::accept_loop::AcceptLoop;

/// Damage to the PDUs of the target on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    None,
    /// Closes the connection on both sides after this number of bytes.
    CutAt(usize),
    /// Flips this bit of this PDU.
    Flip {
        pdu: usize,
        bit: usize,
    },
    /// Repeats this PDU, immediately or after the next one.
    Duplicate {
        pdu: usize,
        late: bool,
    },
    /// Drops this PDU only.
    Drop(usize),
    /// Delays this PDU until after the next one, or for a short time.
    Reorder(usize),
    /// Sends each byte separately.
    Trickle,
}

/// PDUs forwarded from the target on one connection.
#[derive(Clone, Debug, Default)]
pub struct PathLog {
    /// Lengths of PDUs and of their headers, in bytes.
    pub pdus: Vec<(usize, usize)>,
}

impl PathLog {
    pub fn bytes(&self) -> usize {
        self.pdus.iter().map(|(len, _)| len).sum()
    }
}

/// Running proxy.
pub struct FaultyPath {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _accept_loop: AcceptLoop,
}

struct Shared {
    target: SocketAddr,
    /// Index of the connection and its damage.
    damage: (usize, Damage),
    connections: AtomicUsize,
    carried: Mutex<Vec<PathLog>>,
}

impl FaultyPath {
    /// Starts a proxy to `target` that damages one connection.
    pub fn start(target: SocketAddr, connection: usize, damage: Damage) -> FaultyPath {
        let shared = Arc::new(Shared {
            target,
            damage: (connection, damage),
            connections: AtomicUsize::new(0),
            carried: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        let accept_loop = AcceptLoop::start(move |host| accepting.accept(&host));
        FaultyPath { address: accept_loop.address, shared, _accept_loop: accept_loop }
    }

    /// Returns the PDUs of the target on each connection.
    pub fn carried(&self) -> Vec<PathLog> {
        self.shared.carried.lock().unwrap().clone()
    }
}

impl Shared {
    fn accept(self: &Arc<Shared>, host: &TcpStream) {
        let number = self.connections.fetch_add(1, Ordering::SeqCst);
        self.carried.lock().unwrap().push(PathLog::default());
        let Ok(target) = TcpStream::connect(self.target) else { return };
        host.set_nodelay(true).unwrap();
        target.set_nodelay(true).unwrap();
        let (mut from_host, mut to_target) = (host.try_clone().unwrap(), target.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from_host, &mut to_target);
            let _ = to_target.shutdown(Shutdown::Both);
        });
        let (from_target, to_host) = (target, host.try_clone().unwrap());
        let damage = if number == self.damage.0 { self.damage.1 } else { Damage::None };
        let shared = Arc::clone(self);
        std::thread::spawn(move || {
            let end = |stream: &TcpStream| drop(stream.shutdown(Shutdown::Both));
            let (target, host) = (from_target.try_clone().unwrap(), to_host.try_clone().unwrap());
            PathWorker { from_target, to_host, number, damage, sent: 0, held: Vec::new(), shared }.carry();
            end(&host);
            end(&target);
        });
    }
}

struct PathWorker {
    from_target: TcpStream,
    to_host: TcpStream,
    number: usize,
    damage: Damage,
    sent: usize,
    /// Bytes to send after the next PDU.
    held: Vec<u8>,
    shared: Arc<Shared>,
}

impl PathWorker {
    /// Forwards PDUs until either side closes.
    fn carry(mut self) -> Option<()> {
        for number in 0.. {
            let pdu = self.next_pdu()?;
            self.carry_pdu(number, pdu)?;
        }
        None
    }

    /// Receives a PDU of the target. Sends a held one after a timeout.
    fn next_pdu(&mut self) -> Option<Vec<u8>> {
        let mut pdu = vec![0; CommonHeader::LEN];
        let wait = (!self.held.is_empty()).then_some(MAX_HOLD);
        self.from_target.set_read_timeout(wait).ok()?;
        if self.from_target.peek(&mut pdu[..1]).is_err() {
            let held = std::mem::take(&mut self.held);
            self.send(&held)?;
        }
        self.from_target.set_read_timeout(None).ok()?;
        self.from_target.read_exact(&mut pdu).ok()?;
        let header = CommonHeader::decode(pdu[..].try_into().ok()?).ok()?;
        pdu.resize(header.plen as usize, 0);
        self.from_target.read_exact(&mut pdu[CommonHeader::LEN..]).ok()?;
        let lens = (pdu.len(), usize::from(header.hlen));
        self.shared.carried.lock().unwrap()[self.number].pdus.push(lens);
        Some(pdu)
    }

    fn carry_pdu(&mut self, number: usize, mut pdu: Vec<u8>) -> Option<()> {
        let held = std::mem::take(&mut self.held);
        match self.damage {
            Damage::Flip { pdu: at, bit } if at == number => pdu[bit / 8] ^= 1 << (bit % 8),
            Damage::Duplicate { pdu: at, late } if at == number => {
                if late {
                    self.held = pdu.clone();
                } else {
                    self.send(&pdu)?;
                }
            }
            Damage::Drop(at) if at == number => return Some(()),
            Damage::Reorder(at) if at == number => {
                self.held = pdu;
                return Some(());
            }
            _ => {}
        }
        self.send(&pdu)?;
        self.send(&held)
    }

    fn send(&mut self, bytes: &[u8]) -> Option<()> {
        if self.damage == Damage::Trickle {
            return bytes.iter().try_for_each(|byte| self.to_host.write_all(&[*byte])).ok();
        }
        let end = match self.damage {
            Damage::CutAt(end) => end.saturating_sub(self.sent),
            _ => usize::MAX,
        };
        self.to_host.write_all(&bytes[..bytes.len().min(end)]).ok()?;
        self.sent += bytes.len();
        (bytes.len() < end).then_some(())
    }
}

/// Maximum delay of a held PDU without a successor.
const MAX_HOLD: Duration = Duration::from_millis(20);
