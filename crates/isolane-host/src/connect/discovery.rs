//! Discovery: the subsystems that a target offers, and their addresses (Fabrics 1.1 §5.3).
//!
//! The log is read in several commands. GENCTR in its header rises with each change, so the header is read
//! again at the end; if it has changed, the log is read again, a bounded number of times.
//!
//! Invariant: the returned entries belong to one generation.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use isolane_wire::Nqn;
use isolane_wire::admin::LogPage;
use isolane_wire::log::{AddressFamily, DiscoveryEntry, DiscoveryHeader, SubsystemType, Transport};

use super::admin::Admin;
use super::at_first_address;
use crate::error::{ConnectError, Step};
use crate::options::Options;
use crate::uri::Uri;

/// Maximum number of reads of a log that changes in the meantime.
const MAX_ATTEMPTS: usize = 5;

/// Maximum number of entries; a longer log is truncated.
const MAX_ENTRIES: u64 = 1024;

/// Entries of one Get Log Page.
const ENTRIES_PER_READ: u64 = 3;

/// One path to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredSubsystem {
    /// The name.
    pub nqn: Nqn,
    /// SUBTYPE, as the specification calls it.
    pub kind: String,
    /// Whether it is an NVM subsystem, not a discovery service.
    pub nvm: bool,
    /// The transport, as the specification calls it.
    pub transport: String,
    /// Address family, as the specification calls it.
    pub address_family: String,
    /// Address, as reported.
    pub address: String,
    /// Port, as reported.
    pub port: String,
    /// Number of the target's port.
    pub port_id: u16,
}

impl DiscoveredSubsystem {
    /// Returns its address for NVMe/TCP, or `None` for another transport. The unspecified address means the
    /// address that was queried.
    pub fn socket_address(&self, queried: SocketAddr) -> Option<SocketAddr> {
        if self.transport != Transport::Tcp.name() {
            return None;
        }
        let address: IpAddr = self.address.parse().ok()?;
        let port = self.port.parse().ok()?;
        let address = if address.is_unspecified() { queried.ip() } else { address };
        let mut address = SocketAddr::new(address, port);
        // The zone of a link-local address is local to each machine, so the log has none.
        if let (SocketAddr::V6(address), SocketAddr::V6(queried)) = (&mut address, queried)
            && address.ip().is_unicast_link_local()
        {
            address.set_scope_id(queried.scope_id());
        }
        Some(address)
    }
}

/// Queries the discovery service at the URI's host; the NQN and namespace of the URI are ignored.
///
/// # Errors
/// [`ConnectError`].
pub fn discover(uri: &Uri, options: &Options) -> Result<Vec<DiscoveredSubsystem>, ConnectError> {
    let deadline = Instant::now() + options.connect_timeout;
    let options = uri.add_keys(options.clone());
    at_first_address(uri, |address| discover_at(address, &options, deadline))
}

/// Returns the only NVM subsystem that discovery finds, and its address.
pub(crate) fn only_subsystem(
    queried: SocketAddr,
    options: &Options,
    deadline: Instant,
) -> Result<(SocketAddr, Nqn), ConnectError> {
    let found = discover_at(queried, options, deadline)?;
    choose(queried, options.host_nqn, &found)
}

fn choose(
    queried: SocketAddr,
    host: Nqn,
    found: &[DiscoveredSubsystem],
) -> Result<(SocketAddr, Nqn), ConnectError> {
    let offers = found.iter().filter(|found| found.nvm);
    let mut offers: Vec<_> =
        offers.filter_map(|found| Some((found.socket_address(queried)?, found.nqn))).collect();
    // Of several paths to one subsystem, the queried address is known to be reachable.
    offers.sort_by_key(|(address, nqn)| (*nqn, *address != queried));
    offers.dedup_by_key(|(_, nqn)| *nqn);
    match offers.as_slice() {
        [] => Err(ConnectError::NoSubsystem { address: queried, host: host.to_string() }),
        [only] => Ok(*only),
        _ => Err(ConnectError::AmbiguousSubsystem(offers.iter().map(|(_, nqn)| nqn.to_string()).collect())),
    }
}

fn discover_at(
    address: SocketAddr,
    options: &Options,
    deadline: Instant,
) -> Result<Vec<DiscoveredSubsystem>, ConnectError> {
    // This connection is short and needs no keep alive.
    let options = Options { keep_alive: Duration::ZERO, ..options.clone() };
    let mut admin = Admin::connect(address, &Nqn::discovery(), &options, deadline)?;
    admin.enable_and_identify()?;
    for _ in 0..MAX_ATTEMPTS {
        let header = read_header(&mut admin)?;
        let entries = read_entries(&mut admin, header.numrec.min(MAX_ENTRIES))?;
        if read_header(&mut admin)?.genctr == header.genctr {
            return Ok(entries.iter().filter_map(describe).collect());
        }
    }
    Err(admin
        .connection
        .protocol_violation(Step::Log, "the discovery log changes faster than it can be read".to_owned()))
}

fn read_header(admin: &mut Admin) -> Result<DiscoveryHeader, ConnectError> {
    let data = admin.log_page(LogPage::Discovery, 0, 0, DiscoveryHeader::LEN)?;
    let header = DiscoveryHeader::decode_prefix(&data);
    header.filter(|header| header.recfmt == 0).ok_or_else(|| {
        admin
            .connection
            .protocol_violation(Step::Log, "the discovery log has an unknown format (RECFMT)".to_owned())
    })
}

fn read_entries(admin: &mut Admin, count: u64) -> Result<Vec<DiscoveryEntry>, ConnectError> {
    let mut entries = Vec::new();
    let mut next = 0;
    while next < count {
        let now = (count - next).min(ENTRIES_PER_READ);
        let offset = DiscoveryHeader::LEN as u64 + next * DiscoveryEntry::LEN as u64;
        let data = admin.log_page(LogPage::Discovery, 0, offset, now as usize * DiscoveryEntry::LEN)?;
        entries.extend(data.chunks(DiscoveryEntry::LEN).filter_map(DiscoveryEntry::decode_prefix));
        next += now;
    }
    Ok(entries)
}

/// An entry in words; none if its name is not one.
fn describe(entry: &DiscoveryEntry) -> Option<DiscoveredSubsystem> {
    let kind = SubsystemType::decode(entry.subtype).map_or("unknown", SubsystemType::name);
    let transport = Transport::decode(entry.trtype).map_or("unknown", Transport::name);
    let address_family = AddressFamily::decode(entry.adrfam).map_or("unknown", AddressFamily::name);
    Some(DiscoveredSubsystem {
        nqn: entry.subnqn.parse().ok()?,
        kind: kind.to_owned(),
        nvm: entry.subtype == SubsystemType::Nvm.code(),
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
            nvm: true,
            transport: Transport::Tcp.name().to_owned(),
            address_family: AddressFamily::Ipv4.name().to_owned(),
            address: address.to_owned(),
            port: "4420".to_owned(),
            port_id: 1,
        }
    }

    fn host() -> Nqn {
        "nqn.2020-01.a:host".parse().unwrap()
    }

    fn queried() -> SocketAddr {
        "10.0.0.1:4420".parse().unwrap()
    }

    #[test]
    fn prefers_queried_address_of_only_subsystem() {
        let offers = [offer("nqn.2020-01.a:x", "10.0.0.9"), offer("nqn.2020-01.a:x", "10.0.0.1")];
        assert_eq!(choose(queried(), host(), &offers).unwrap().0, queried());
        let elsewhere = [offer("nqn.2020-01.a:x", "10.0.0.9")];
        assert_eq!(choose(queried(), host(), &elsewhere).unwrap().0, "10.0.0.9:4420".parse().unwrap());
    }

    #[test]
    fn lists_several_subsystems_and_rejects_none() {
        let offers = [offer("nqn.2020-01.a:x", "10.0.0.1"), offer("nqn.2020-01.a:y", "10.0.0.1")];
        let error = choose(queried(), host(), &offers).unwrap_err().to_string();
        assert!(error.contains("nqn.2020-01.a:x") && error.contains("nqn.2020-01.a:y"), "{error}");
        let discovery = DiscoveredSubsystem { nvm: false, ..offer("nqn.2020-01.a:x", "10.0.0.1") };
        let error = choose(queried(), host(), &[discovery]).unwrap_err().to_string();
        assert!(error.contains("offered to host nqn.2020-01.a:host; allow that host"), "{error}");
    }

    #[test]
    fn link_local_address_keeps_zone_of_query() {
        let queried: SocketAddr = "[fe80::1%7]:4420".parse().unwrap();
        assert_eq!(offer("n", "fe80::1").socket_address(queried), Some(queried));
        let elsewhere = "[fe80::2%7]:4420".parse().ok();
        assert_eq!(offer("n", "fe80::2").socket_address(queried), elsewhere);
        assert_eq!(offer("n", "2001:db8::1").socket_address(queried), "[2001:db8::1]:4420".parse().ok());
    }

    #[test]
    fn unspecified_address_means_queried_address() {
        assert_eq!(offer("n", "0.0.0.0").socket_address(queried()), Some(queried()));
        let rdma = DiscoveredSubsystem { transport: "RDMA".to_owned(), ..offer("n", "10.0.0.1") };
        assert_eq!(rdma.socket_address(queried()), None);
    }
}
