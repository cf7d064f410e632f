//! Associations that outlive the process that made them.
//!
//! A process that is killed has its connections closed by the kernel, but its target may still be at work on
//! what they brought. So whoever takes its place has to know which associations there were, and may write
//! only when they are known dead, by the rule of [`fence`](crate::fence). A [`Witness`] keeps notes of them
//! where the process's end does not reach; [`Client::connect_after`](crate::Client::connect_after) waits for
//! those that were left. Invariant: no write goes out through an association before its witness knows of it.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_wire::Nqn;
use uuid::Uuid;

use crate::expiry::OldAssociation;
use crate::info::Info;
use crate::options::Options;

/// What has to be known of an association to tell when it is dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predecessor {
    /// The target's address.
    pub address: SocketAddr,
    /// The subsystem.
    pub nqn: Nqn,
    /// The controller of the association.
    pub cntlid: u16,
    /// The host that it belonged to.
    pub host_nqn: Nqn,
    /// The machine that it belonged to.
    pub host_id: Uuid,
    /// Its keep-alive timeout; zero: none.
    pub keep_alive: Duration,
    /// Whether any command counted as keep alive (TBKAS).
    pub is_keep_alive_traffic_based: bool,
    /// How long its commands may go on after its end: CQT, or
    /// [`Reconnect::quiesce`](crate::Reconnect::quiesce); `None` if not known.
    pub command_quiesce_time: Option<Duration>,
}

/// Keeps notes of associations beyond the end of this process.
pub trait Witness: Send + Sync {
    /// An association was made. When this returns its note is kept, under a key that it returns. Not called
    /// by the thread that drives the client, but while that connects.
    ///
    /// # Errors
    /// Why it cannot be kept: the association is given up, unused.
    fn on_made(&self, association: &Predecessor) -> io::Result<u64>;

    /// The association is known dead: its note is needed no more. Must not block.
    fn on_dead(&self, key: u64);
}

/// One association that a witness knows of. If it is dropped before it [is used](Note::on_use), nothing was
/// ever written through it, and it needs no note.
pub(crate) struct Note {
    witness: Arc<dyn Witness>,
    key: u64,
    is_used: bool,
}

impl Note {
    /// Asks the witness to know of an association.
    pub(crate) fn make(witness: &Arc<dyn Witness>, association: &Predecessor) -> io::Result<Note> {
        let key = witness.on_made(association)?;
        Ok(Note { witness: Arc::clone(witness), key, is_used: false })
    }

    /// That of an association of another process.
    pub(crate) fn of(witness: &Arc<dyn Witness>, key: u64) -> Note {
        Note { witness: Arc::clone(witness), key, is_used: true }
    }

    /// From now on writes may go out.
    pub(crate) fn on_use(&mut self) {
        self.is_used = true;
    }

    /// The association can do nothing any more.
    pub(crate) fn on_dead(mut self) {
        self.is_used = false;
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if !self.is_used {
            self.witness.on_dead(self.key);
        }
    }
}

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Note({})", self.key)
    }
}

impl Predecessor {
    pub(crate) fn of(info: &Info, options: &Options) -> Predecessor {
        Predecessor {
            address: info.address,
            nqn: info.nqn,
            cntlid: info.controller.cntlid,
            host_nqn: options.host_nqn,
            host_id: options.host_id,
            keep_alive: options.keep_alive,
            is_keep_alive_traffic_based: info.controller.is_keep_alive_traffic_based,
            command_quiesce_time: options.reconnect.quiesce_time(info.controller.command_quiesce_time),
        }
    }

    /// The most bytes of [`Predecessor::encode`].
    pub const BYTES_MAX: usize = 600;

    /// As bytes, to be kept.
    pub fn encode(&self) -> Vec<u8> {
        let flags = [self.is_keep_alive_traffic_based, self.command_quiesce_time.is_some()];
        let mut bytes = vec![FORMAT, u8::from(flags[0]) | u8::from(flags[1]) << 1];
        let ip = match self.address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let scope = if let SocketAddr::V6(address) = self.address { address.scope_id() } else { 0 };
        bytes.extend(ip.octets());
        bytes.extend(scope.to_le_bytes());
        bytes.extend(self.address.port().to_le_bytes());
        bytes.extend(self.cntlid.to_le_bytes());
        bytes.extend(self.host_id.as_bytes());
        for time in [self.keep_alive, self.command_quiesce_time.unwrap_or_default()] {
            bytes.extend(u64::try_from(time.as_millis()).unwrap_or(u64::MAX).to_le_bytes());
        }
        for nqn in [&self.nqn, &self.host_nqn] {
            bytes.push(nqn.as_str().len() as u8);
            bytes.extend(nqn.as_str().as_bytes());
        }
        debug_assert!(bytes.len() <= Predecessor::BYTES_MAX);
        bytes
    }

    /// From the bytes of [`Predecessor::encode`]; `None` if they are not such.
    pub fn decode(bytes: &[u8]) -> Option<Predecessor> {
        let mut rest = bytes;
        let [format, flags] = take(&mut rest)?;
        let ip = IpAddr::from(take::<16>(&mut rest)?).to_canonical();
        let scope = u32::from_le_bytes(take(&mut rest)?);
        let mut address = SocketAddr::new(ip, u16::from_le_bytes(take(&mut rest)?));
        if let SocketAddr::V6(address) = &mut address {
            address.set_scope_id(scope);
        }
        let predecessor = Predecessor {
            address,
            cntlid: u16::from_le_bytes(take(&mut rest)?),
            host_id: Uuid::from_bytes(take(&mut rest)?),
            keep_alive: Duration::from_millis(u64::from_le_bytes(take(&mut rest)?)),
            command_quiesce_time: Some(Duration::from_millis(u64::from_le_bytes(take(&mut rest)?)))
                .filter(|_| flags & 2 != 0),
            is_keep_alive_traffic_based: flags & 1 != 0,
            nqn: take_nqn(&mut rest)?,
            host_nqn: take_nqn(&mut rest)?,
        };
        (format == FORMAT && flags <= 3 && rest.is_empty()).then_some(predecessor)
    }

    /// When it is dead in any case, if its process was dead at `died`: rule 3 of [`fence`](crate::fence).
    /// None if that is never certain.
    pub fn expiry(&self, died: Instant) -> Option<Instant> {
        self.old(died).expiry()
    }

    pub(crate) fn old(&self, died: Instant) -> OldAssociation {
        OldAssociation {
            address: self.address,
            nqn: self.nqn,
            cntlid: self.cntlid,
            died,
            keep_alive: self.keep_alive,
            is_keep_alive_traffic_based: self.is_keep_alive_traffic_based,
            quiesce: self.command_quiesce_time,
        }
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = rest.split_first_chunk::<N>()?;
    *rest = behind;
    Some(*taken)
}

fn take_nqn(rest: &mut &[u8]) -> Option<Nqn> {
    let [len] = take(rest)?;
    let (name, behind) = rest.split_at_checked(usize::from(len))?;
    *rest = behind;
    Nqn::new(std::str::from_utf8(name).ok()?).ok()
}

const FORMAT: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn predecessor(address: &str) -> Predecessor {
        Predecessor {
            address: address.parse().unwrap(),
            nqn: Nqn::new(&format!("nqn.2024-01.org.example:{}", "s".repeat(190))).unwrap(),
            cntlid: 0x1234,
            host_nqn: Nqn::new(&format!("nqn.2024-01.org.example:{}", "h".repeat(190))).unwrap(),
            host_id: Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
            keep_alive: Duration::from_millis(15_001),
            is_keep_alive_traffic_based: true,
            command_quiesce_time: Some(Duration::from_millis(77)),
        }
    }

    #[test]
    fn a_note_reads_back_as_it_was_written() {
        for address in ["127.0.0.1:4420", "[::1]:1", "[fe80::1%3]:65535"] {
            for command_quiesce_time in [Some(Duration::from_millis(77)), Some(Duration::ZERO), None] {
                let predecessor = Predecessor { command_quiesce_time, ..predecessor(address) };
                let bytes = predecessor.encode();
                assert!(bytes.len() <= Predecessor::BYTES_MAX);
                assert_eq!(Predecessor::decode(&bytes), Some(predecessor));
            }
        }
    }

    #[test]
    fn what_is_no_note_is_none() {
        let bytes = predecessor("127.0.0.1:4420").encode();
        assert!((0..bytes.len()).all(|len| Predecessor::decode(&bytes[..len]).is_none()));
        assert_eq!(Predecessor::decode(&[&bytes[..], &[0]].concat()), None);
        for at in [0, 1] {
            let mut other = bytes.clone();
            other[at] = 9;
            assert_eq!(Predecessor::decode(&other), None);
        }
    }
}
