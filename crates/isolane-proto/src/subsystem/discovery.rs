//! The discovery log: one record for each address of the NVM subsystem (Fabrics 1.1 §5.3).
//!
//! Invariant: every record names a specified address of a subsystem that the host can connect to.

use std::net::{IpAddr, SocketAddr};

use isolane_wire::Ascii;
use isolane_wire::log::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, SecureChannel, SubsystemType, Transport,
    TransportRequirements,
};

use super::MAX_ADMIN_ENTRIES;
use super::command::CommandContext;

/// The page for this host.
pub(super) fn log(context: &CommandContext) -> Vec<u8> {
    let addresses = addresses(context);
    let header = DiscoveryHeader {
        genctr: context.generation,
        numrec: addresses.len() as u64,
        ..DiscoveryHeader::default()
    };
    let mut page = header.encode().to_vec();
    for (port_id, address) in (1..).zip(addresses) {
        page.extend(entry(context, port_id, address).encode());
    }
    page
}

/// The advertised addresses, or the address that the host has reached.
fn addresses(context: &CommandContext) -> Vec<SocketAddr> {
    if !context.nvm.is_allowed(&context.association.host) {
        return Vec::new();
    }
    let local = context.association.connection.local;
    match context.advertise {
        [] => vec![local],
        advertise => advertise.iter().map(|&address| resolve_wildcard(address, local.ip())).collect(),
    }
}

/// Replaces a wildcard address by the one that the host has reached.
fn resolve_wildcard(address: SocketAddr, local: IpAddr) -> SocketAddr {
    let ip = if address.ip().is_unspecified() { local } else { address.ip() };
    SocketAddr::new(ip, address.port())
}

fn entry(context: &CommandContext, port_id: u16, address: SocketAddr) -> DiscoveryEntry {
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
        subnqn: context.nvm.config.nqn.into(),
        traddr: Ascii::lossy(&ip.to_string()),
        sectype: SecureChannel::None.code(),
        ..DiscoveryEntry::default()
    }
}
