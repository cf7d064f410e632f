//! The discovery service: which subsystems a target offers, and where (Fabrics 1.1 §5.3).
//!
//! The log is read in pieces. GENCTR in its header rises with each change, so the header is read again at the
//! end, and if it changed the log is read anew, a bounded number of times. Not kept: the connection is closed
//! after the answer. Invariant: the entries that come out are those of one generation.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use isolane_memory::Buffer;
use isolane_proto::host::Data;
use isolane_wire::Nqn;
use isolane_wire::admin::{GetLogPageCommand, LogPage};
use isolane_wire::log::{AddressFamily, DiscoveryEntry, DiscoveryHeader, SubsystemType, Transport};

use crate::error::{ConnectError, Step};
use crate::options::Options;
use crate::setup::{self, Admin};
use crate::uri::Uri;

/// How often a log that changes while it is read is read anew.
const ATTEMPTS_MAX: usize = 5;

/// Entries that are read; a log with more is cut off.
const ENTRIES_MAX: u64 = 1024;

/// Entries of one Get Log Page.
const ENTRIES_PER_READ: u64 = 3;

/// One way to one subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredSubsystem {
    /// The name.
    pub nqn: Nqn,
    /// SUBTYPE, as the specification calls it.
    pub kind: String,
    /// Whether it has volumes; else it is a discovery service.
    pub is_nvm: bool,
    /// The transport, as the specification calls it.
    pub transport: String,
    /// Address family, as the specification calls it.
    pub address_family: String,
    /// Address as the target tells it.
    pub address: String,
    /// Port as the target tells it.
    pub port: String,
    /// Number of the target's port.
    pub port_id: u16,
}

impl DiscoveredSubsystem {
    /// Where it can be reached over NVMe/TCP; none if over something else only. An address that means "any"
    /// stands for the one that was asked.
    pub fn socket_address(&self, asked: SocketAddr) -> Option<SocketAddr> {
        if self.transport != Transport::Tcp.name() {
            return None;
        }
        let address: IpAddr = self.address.parse().ok()?;
        let port = self.port.parse().ok()?;
        let address = if address.is_unspecified() { asked.ip() } else { address };
        Some(SocketAddr::new(address, port))
    }
}

/// Asks the discovery service at the URI's host; its NQN and namespace do not matter.
///
/// # Errors
/// Why there is no answer, and what to do.
pub fn discover(uri: &Uri, options: &Options) -> Result<Vec<DiscoveredSubsystem>, ConnectError> {
    let deadline = Instant::now() + options.connect_timeout;
    let mut outcome = Ok(Vec::new());
    for address in setup::resolve(uri)? {
        outcome = discover_at(address, options, deadline);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// The only NVM subsystem that discovery finds, and where it is.
pub(crate) fn only_subsystem(
    asked: SocketAddr,
    options: &Options,
    deadline: Instant,
) -> Result<(SocketAddr, Nqn), ConnectError> {
    let found = discover_at(asked, options, deadline)?;
    choose(asked, &found)
}

fn choose(asked: SocketAddr, found: &[DiscoveredSubsystem]) -> Result<(SocketAddr, Nqn), ConnectError> {
    let offers = found.iter().filter(|found| found.is_nvm);
    let mut offers: Vec<_> =
        offers.filter_map(|found| Some((found.socket_address(asked)?, found.nqn))).collect();
    // Of several ways to one subsystem, the address that was asked is known to be reachable.
    offers.sort_by_key(|(address, nqn)| (*nqn, *address != asked));
    offers.dedup_by_key(|(_, nqn)| *nqn);
    match offers.as_slice() {
        [] => Err(ConnectError::NoSubsystem(asked)),
        [only] => Ok(*only),
        _ => Err(ConnectError::ManySubsystems(offers.iter().map(|(_, nqn)| nqn.to_string()).collect())),
    }
}

fn discover_at(
    address: SocketAddr,
    options: &Options,
    deadline: Instant,
) -> Result<Vec<DiscoveredSubsystem>, ConnectError> {
    // Nothing keeps this connection alive: it is short.
    let options = Options { keep_alive: Duration::ZERO, ..options.clone() };
    let mut admin = Admin::connect(address, &Nqn::discovery(), &options, deadline)?;
    admin.enable_and_identify()?;
    for _ in 0..ATTEMPTS_MAX {
        let header = read_header(&mut admin)?;
        let entries = read_entries(&mut admin, header.numrec.min(ENTRIES_MAX))?;
        if read_header(&mut admin)?.genctr == header.genctr {
            return Ok(entries.iter().filter_map(describe).collect());
        }
    }
    Err(admin
        .connection
        .misbehaved(Step::Log, "its discovery log changes faster than it can be read".to_owned()))
}

fn read_header(admin: &mut Admin) -> Result<DiscoveryHeader, ConnectError> {
    let data = read_log(admin, 0, DiscoveryHeader::LEN)?;
    let header = DiscoveryHeader::decode_prefix(&data);
    header.filter(|header| header.recfmt == 0).ok_or_else(|| {
        admin.connection.misbehaved(Step::Log, "its discovery log has an unknown format (RECFMT)".to_owned())
    })
}

fn read_entries(admin: &mut Admin, count: u64) -> Result<Vec<DiscoveryEntry>, ConnectError> {
    let mut entries = Vec::new();
    let mut next = 0;
    while next < count {
        let now = (count - next).min(ENTRIES_PER_READ);
        let offset = DiscoveryHeader::LEN as u64 + next * DiscoveryEntry::LEN as u64;
        let data = read_log(admin, offset, now as usize * DiscoveryEntry::LEN)?;
        entries.extend(data.chunks(DiscoveryEntry::LEN).filter_map(DiscoveryEntry::decode_prefix));
        next += now;
    }
    Ok(entries)
}

fn read_log(admin: &mut Admin, offset: u64, len: usize) -> Result<Vec<u8>, ConnectError> {
    let command = GetLogPageCommand::new(LogPage::Discovery, offset, len as u32);
    let data = Data::Read(Buffer::contiguous(len));
    let reply = admin.connection.command(Step::Log, command.entry(), data)?;
    Ok(reply.buffer.map(|buffer| buffer.to_vec()).unwrap_or_default())
}

/// An entry in words; none if its name is not one.
fn describe(entry: &DiscoveryEntry) -> Option<DiscoveredSubsystem> {
    let kind = SubsystemType::decode(entry.subtype).map_or("unknown", SubsystemType::name);
    let transport = Transport::decode(entry.trtype).map_or("unknown", Transport::name);
    let address_family = AddressFamily::decode(entry.adrfam).map_or("unknown", AddressFamily::name);
    Some(DiscoveredSubsystem {
        nqn: entry.subnqn.parse().ok()?,
        kind: kind.to_owned(),
        is_nvm: entry.subtype == SubsystemType::Nvm.code(),
        transport: transport.to_owned(),
        address_family: address_family.to_owned(),
        address: entry.traddr.to_string(),
        port: entry.trsvcid.to_string(),
        port_id: entry.portid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(nqn: &str, address: &str) -> DiscoveredSubsystem {
        DiscoveredSubsystem {
            nqn: nqn.parse().unwrap(),
            kind: SubsystemType::Nvm.name().to_owned(),
            is_nvm: true,
            transport: Transport::Tcp.name().to_owned(),
            address_family: AddressFamily::Ipv4.name().to_owned(),
            address: address.to_owned(),
            port: "4420".to_owned(),
            port_id: 1,
        }
    }

    fn asked() -> SocketAddr {
        "10.0.0.1:4420".parse().unwrap()
    }

    #[test]
    fn the_only_subsystem_is_chosen_by_the_address_that_was_asked() {
        let offers = [offer("nqn.2020-01.a:x", "10.0.0.9"), offer("nqn.2020-01.a:x", "10.0.0.1")];
        assert_eq!(choose(asked(), &offers).unwrap().0, asked());
        let elsewhere = [offer("nqn.2020-01.a:x", "10.0.0.9")];
        assert_eq!(choose(asked(), &elsewhere).unwrap().0, "10.0.0.9:4420".parse().unwrap());
    }

    #[test]
    fn several_subsystems_are_listed_and_none_is_an_error() {
        let offers = [offer("nqn.2020-01.a:x", "10.0.0.1"), offer("nqn.2020-01.a:y", "10.0.0.1")];
        let error = choose(asked(), &offers).unwrap_err().to_string();
        assert!(error.contains("nqn.2020-01.a:x") && error.contains("nqn.2020-01.a:y"), "{error}");
        let discovery = DiscoveredSubsystem { is_nvm: false, ..offer("nqn.2020-01.a:x", "10.0.0.1") };
        assert!(matches!(choose(asked(), &[discovery]), Err(ConnectError::NoSubsystem(_))));
    }

    #[test]
    fn an_address_that_means_any_stands_for_the_one_asked() {
        assert_eq!(offer("n", "0.0.0.0").socket_address(asked()), Some(asked()));
        let rdma = DiscoveredSubsystem { transport: "RDMA".to_owned(), ..offer("n", "10.0.0.1") };
        assert_eq!(rdma.socket_address(asked()), None);
    }
}
