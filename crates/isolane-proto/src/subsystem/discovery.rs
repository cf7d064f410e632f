//! The discovery log: one record for each address of each NVM subsystem (Fabrics 1.1 §5.3).
//!
//! Invariant: every record names a specified address of a subsystem that the host can connect to.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use isolane_wire::log::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, SecureChannel, SubsystemType, Transport,
    TransportRequirements,
};
use isolane_wire::{Ascii, Nqn};

use super::MAX_ADMIN_ENTRIES;
use super::command::CommandContext;

/// The page for this host.
pub(super) fn log(context: &CommandContext) -> Vec<u8> {
    let addresses = addresses(context);
    let header = DiscoveryHeader {
        genctr: context.generation,
        numrec: (context.reachable.len() * addresses.len()) as u64,
        ..DiscoveryHeader::default()
    };
    let mut page = header.encode().to_vec();
    for nqn in context.reachable {
        for (port_id, address) in (1..).zip(&addresses) {
            page.extend(entry(*nqn, port_id, *address).encode());
        }
    }
    page
}

/// The advertised addresses, or the listeners that the host can reach.
fn addresses(context: &CommandContext) -> Vec<SocketAddr> {
    let local = context.association.connection.local;
    match context.advertise {
        [] => reachable(context.listeners, local),
        advertise => advertise.iter().map(|&address| resolve_wildcard(address, local.ip())).collect(),
    }
}

/// The listeners of the family of `local`, the address that the host has reached, so that it finds
/// all of its paths.
fn reachable(listeners: &[SocketAddr], local: SocketAddr) -> Vec<SocketAddr> {
    let local = SocketAddr::new(local.ip().to_canonical(), local.port());
    let mut found: Vec<SocketAddr> = Vec::new();
    for listener in listeners.iter().chain([&local]) {
        let address = resolve_wildcard(*listener, local.ip());
        let has_family = listener.is_ipv4() == local.is_ipv4() || is_dual_stack(listener, listeners);
        if has_family && is_reachable(address.ip(), local.ip()) && !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

/// Whether a listener at `[::]` also accepts IPv4.
fn is_dual_stack(listener: &SocketAddr, listeners: &[SocketAddr]) -> bool {
    let is_taken = |other: &SocketAddr| other.is_ipv4() && other.port() == listener.port();
    listener.ip() == Ipv6Addr::UNSPECIFIED && !listeners.iter().any(is_taken)
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

fn entry(nqn: Nqn, port_id: u16, address: SocketAddr) -> DiscoveryEntry {
    // An IPv4 address of an IPv6 socket is reported as IPv4.
    let ip = address.ip().to_canonical();
    let family = if ip.is_ipv4() { AddressFamily::Ipv4 } else { AddressFamily::Ipv6 };
    // The secure channel stays "not specified": libnvme before autumn 2025 reads "not required" as
    // a request for TLS, and then `nvme connect-all` fails without a key.
    let treq = TransportRequirements(0).with_disable_sq_flow_control(true);
    DiscoveryEntry {
        trtype: Transport::Tcp.code(),
        adrfam: family.code(),
        subtype: SubsystemType::Nvm.code(),
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
