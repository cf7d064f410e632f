//! The discovery log: one record for each address of each NVM subsystem (Fabrics 1.1 §5.3), over all listeners, and one
//! for each referral.
//!
//! Invariant: every record of an NVM subsystem names a specified address of one that the host can connect to.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use isolane_wire::log::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, SecureChannel, SubsystemType, Transport,
    TransportRequirements,
};
use isolane_wire::{Ascii, Nqn};

use super::listener::Listeners;
use super::{ConnectionInfo, Listener, MAX_ADMIN_ENTRIES, SubsystemConfig};

/// One path to a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    kind: SubsystemType,
    nqn: Nqn,
    port_id: u16,
    address: SocketAddr,
}

/// The page for this host.
pub(super) fn log(generation: u64, records: &[Record]) -> Vec<u8> {
    let header =
        DiscoveryHeader { genctr: generation, numrec: records.len() as u64, ..DiscoveryHeader::default() };
    let mut page = header.encode().to_vec();
    page.extend(records.iter().flat_map(|record| entry(record).encode()));
    page
}

/// The records of these subsystems for a host that has come by this connection: the advertised addresses, or the
/// listeners of each subsystem that the host can reach.
pub(super) fn records<'a>(
    subsystems: impl Iterator<Item = &'a SubsystemConfig>,
    listeners: &Listeners,
    advertise: &[SocketAddr],
    from: ConnectionInfo,
) -> Vec<Record> {
    let local = SocketAddr::new(from.local.ip().to_canonical(), from.local.port());
    let advertised = advertise.iter().map(|&address| resolve_wildcard(address, local.ip()));
    let advertised: Vec<_> = (1..).zip(advertised).collect();
    let records_of = |subsystem: &'a SubsystemConfig| {
        let addresses = match advertised.as_slice() {
            [] => reachable(subsystem, listeners, (from, local)),
            _ if listeners.iter().any(|(_, listener, _)| listener.has(subsystem)) => advertised.clone(),
            _ => Vec::new(),
        };
        addresses.into_iter().map(|(port_id, address)| Record {
            kind: SubsystemType::Nvm,
            nqn: subsystem.nqn,
            port_id,
            address,
        })
    };
    subsystems.flat_map(records_of).collect()
}

/// The records of other discovery services. Their PORTIDs are their numbers here, because each is that of another
/// target.
pub(super) fn referrals(addresses: &[SocketAddr]) -> impl Iterator<Item = Record> {
    let (kind, nqn) = (SubsystemType::Referral, Nqn::discovery());
    (1..).zip(addresses).map(move |(port_id, &address)| Record { kind, nqn, port_id, address })
}

/// The listeners of a subsystem of the family of `local`, the address that the host has reached, so that it finds
/// all of its paths; with their PORTIDs.
fn reachable(
    subsystem: &SubsystemConfig,
    listeners: &Listeners,
    (from, local): (ConnectionInfo, SocketAddr),
) -> Vec<(u16, SocketAddr)> {
    let mut found: Vec<(u16, SocketAddr)> = Vec::new();
    for (id, listener, port_id) in listeners.iter().filter(|(_, listener, _)| listener.has(subsystem)) {
        let is_own = id == from.listener;
        let address = if is_own { local } else { resolve_wildcard(listener.address, local.ip()) };
        let is_same_family = listener.address.is_ipv4() == local.is_ipv4();
        let has_family = is_same_family || is_dual_stack(listener, listeners);
        let is_reachable = is_own || (has_family && is_reachable(address.ip(), local.ip()));
        if is_reachable && !found.iter().any(|(_, other)| *other == address) {
            found.push((port_id, address));
        }
    }
    found
}

/// Whether a listener at `[::]` also accepts IPv4.
fn is_dual_stack(listener: &Listener, listeners: &Listeners) -> bool {
    let address = listener.address;
    let is_taken = |other: &Listener| other.address.is_ipv4() && other.address.port() == address.port();
    address.ip() == Ipv6Addr::UNSPECIFIED && !listeners.iter().any(|(_, other, _)| is_taken(other))
}

/// A loopback address is reachable on its machine only. A link-local one is useless without its
/// zone, except where the host has come from.
fn is_reachable(ip: IpAddr, local: IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    ip == local || (!is_link_local && (!ip.is_loopback() || local.is_loopback()))
}

/// Replaces a wildcard address by the one that the host has reached.
fn resolve_wildcard(address: SocketAddr, local: IpAddr) -> SocketAddr {
    let ip = if address.ip().is_unspecified() { local } else { address.ip() };
    SocketAddr::new(ip, address.port())
}

fn entry(record: &Record) -> DiscoveryEntry {
    let Record { kind, nqn, port_id, address } = *record;
    // An IPv4 address of an IPv6 socket is reported as IPv4.
    let ip = address.ip().to_canonical();
    let family = if ip.is_ipv4() { AddressFamily::Ipv4 } else { AddressFamily::Ipv6 };
    // The secure channel stays "not specified": libnvme before autumn 2025 reads "not required" as
    // a request for TLS, and then `nvme connect-all` fails without a key.
    let treq = TransportRequirements(0).with_disable_sq_flow_control(true);
    DiscoveryEntry {
        trtype: Transport::Tcp.code(),
        adrfam: family.code(),
        subtype: kind.code(),
        treq,
        portid: port_id,
        cntlid: DiscoveryEntry::CNTLID_DYNAMIC,
        asqsz: MAX_ADMIN_ENTRIES,
        trsvcid: Ascii::lossy(&address.port().to_string()),
        subnqn: nqn.into(),
        traddr: Ascii::lossy(&ip.to_string()),
        sectype: SecureChannel::None.code(),
        ..DiscoveryEntry::default()
    }
}
