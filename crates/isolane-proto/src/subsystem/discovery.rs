//! The discovery log: which subsystems a host reaches, and where (Fabrics 1.1 §5.3).
//!
//! What it is: one record per address of the NVM subsystem. What it is not: a registry of other targets.
//! Invariant: no record names an unspecified address, and none a subsystem that the host may not connect to.

use std::net::{IpAddr, SocketAddr};

use isolane_wire::log::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, SecureChannel, SubsystemType, Transport,
    TransportRequirements,
};
use isolane_wire::{Ascii, NqnField};

use super::MAX_ADMIN_ENTRIES;
use super::admin::CommandContext;
use super::association::Association;

/// The page as this host sees it.
pub(super) fn log(association: &Association, site: &CommandContext) -> Vec<u8> {
    let addresses = addresses(association, site);
    let header = DiscoveryHeader {
        genctr: site.generation,
        numrec: addresses.len() as u64,
        ..DiscoveryHeader::default()
    };
    let mut page = header.encode().to_vec();
    for (port_id, address) in (1..).zip(addresses) {
        page.extend(entry(site, port_id, address).encode());
    }
    page
}

/// What is advertised, or else the address that the host itself has reached.
fn addresses(association: &Association, site: &CommandContext) -> Vec<SocketAddr> {
    if !site.served.is_allowed(&association.host) {
        return Vec::new();
    }
    let local = association.connection.local;
    match site.advertise {
        [] => vec![local],
        advertise => advertise.iter().map(|&address| resolve_wildcard(address, local.ip())).collect(),
    }
}

/// "Any address" means the one that the host has reached.
fn resolve_wildcard(address: SocketAddr, local: IpAddr) -> SocketAddr {
    let ip = if address.ip().is_unspecified() { local } else { address.ip() };
    SocketAddr::new(ip, address.port())
}

fn entry(site: &CommandContext, port_id: u16, address: SocketAddr) -> DiscoveryEntry {
    let ip = address.ip().to_canonical();
    // The secure channel stays "not told": libnvme before autumn 2025 takes "not required" for a wish to use
    // TLS, and then `nvme connect-all` fails for want of a key.
    let treq = TransportRequirements(0).with_disable_sq_flow_control(true);
    DiscoveryEntry {
        trtype: Transport::Tcp.code(),
        adrfam: family(ip).code(),
        subtype: SubsystemType::Nvm.code(),
        treq,
        portid: port_id,
        cntlid: DiscoveryEntry::CNTLID_DYNAMIC,
        asqsz: MAX_ADMIN_ENTRIES,
        trsvcid: Ascii::lossy(&address.port().to_string()),
        subnqn: NqnField::from(&site.served.config.nqn),
        traddr: Ascii::lossy(&ip.to_string()),
        sectype: SecureChannel::None.code(),
        ..DiscoveryEntry::default()
    }
}

/// An IPv4 address that came in through an IPv6 socket is told as IPv4.
fn family(ip: IpAddr) -> AddressFamily {
    match ip {
        IpAddr::V4(_) => AddressFamily::Ipv4,
        IpAddr::V6(_) => AddressFamily::Ipv6,
    }
}
