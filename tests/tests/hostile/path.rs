//! A path between our host and our target that damages what the target says, once, at a place that a test
//! chooses.
//!
//! It carries what the host says untouched, and the target's PDUs one by one.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolane_wire::pdu::CommonHeader;

use crate::door::Door;

/// What becomes of the target's words on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    None,
    /// So many bytes arrive, then the connection ends on both sides.
    CutAt(usize),
    /// This bit of this PDU.
    Flip {
        pdu: usize,
        bit: usize,
    },
    /// This PDU comes a second time, at once or after others.
    Twice {
        pdu: usize,
        is_late: bool,
    },
    /// This PDU never comes, and what follows does.
    Lost(usize),
    /// This PDU comes after the next, or after a while.
    Behind(usize),
    /// Each byte comes alone.
    Trickle,
}

/// What was carried from the target on one connection.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// Lengths of its PDUs, in bytes, and of their headers.
    pub pdus: Vec<(usize, usize)>,
}

impl Carried {
    pub fn bytes(&self) -> usize {
        self.pdus.iter().map(|(len, _)| len).sum()
    }
}

/// A running path.
pub struct Path {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _door: Door,
}

struct Shared {
    target: SocketAddr,
    /// On the connection of this number, counted from 0.
    damage: (usize, Damage),
    connections: AtomicUsize,
    carried: Mutex<Vec<Carried>>,
}

impl Path {
    /// A path to `target` that does `damage` on one connection.
    pub fn start(target: SocketAddr, connection: usize, damage: Damage) -> Path {
        let shared = Arc::new(Shared {
            target,
            damage: (connection, damage),
            connections: AtomicUsize::new(0),
            carried: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        let door = Door::open(move |host| accepting.accept(&host));
        Path { address: door.address, shared, _door: door }
    }

    /// What the target said on each connection.
    pub fn carried(&self) -> Vec<Carried> {
        self.shared.carried.lock().unwrap().clone()
    }
}

impl Shared {
    fn accept(self: &Arc<Shared>, host: &TcpStream) {
        let number = self.connections.fetch_add(1, Ordering::SeqCst);
        self.carried.lock().unwrap().push(Carried::default());
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
            Carrier { from_target, to_host, number, damage, sent: 0, held: Vec::new(), shared }.carry();
            end(&host);
            end(&target);
        });
    }
}

struct Carrier {
    from_target: TcpStream,
    to_host: TcpStream,
    number: usize,
    damage: Damage,
    sent: usize,
    /// Comes after the next PDU.
    held: Vec<u8>,
    shared: Arc<Shared>,
}

impl Carrier {
    /// Until either side ends.
    fn carry(mut self) -> Option<()> {
        for number in 0.. {
            let pdu = self.next_pdu()?;
            self.carry_pdu(number, pdu)?;
        }
        None
    }

    /// A PDU of the target. One that was held long enough goes out meanwhile.
    fn next_pdu(&mut self) -> Option<Vec<u8>> {
        let mut pdu = vec![0; CommonHeader::LEN];
        let wait = (!self.held.is_empty()).then_some(HELD);
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
            Damage::Twice { pdu: at, is_late } if at == number => {
                if is_late {
                    self.held = pdu.clone();
                } else {
                    self.send(&pdu)?;
                }
            }
            Damage::Lost(at) if at == number => return Some(()),
            Damage::Behind(at) if at == number => {
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

/// So long a PDU is held that nothing else comes after.
const HELD: Duration = Duration::from_millis(20);
