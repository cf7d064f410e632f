//! Routes: `/proc/net/route` and `/proc/net/ipv6_route`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::fields::Fields;
use super::read_error::{Malformed, ReadError, if_missing};
use super::root::Root;

/// Limit in bytes of a table.
const MAX_BYTES: usize = 4 << 20;
/// Flag of a route that is in use.
const UP: u32 = 1;

/// A route to a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Name of the network device.
    pub device: String,
    /// Address of the network.
    pub network: IpAddr,
    /// Length of the network's prefix, in bits.
    pub prefix: u8,
}

impl Route {
    /// Reads the routes of a process (`self`, or an ID). A system without IPv6 has none of that family.
    ///
    /// # Errors
    /// The file and the reason.
    pub fn read(root: &Root, process: &str) -> Result<Vec<Route>, ReadError> {
        let mut routes = root.parse(&format!("/proc/{process}/net/route"), MAX_BYTES, decode_routes)?;
        let ipv6 = root.parse(&format!("/proc/{process}/net/ipv6_route"), MAX_BYTES, decode_ipv6_routes);
        routes.extend(ipv6.or_else(if_missing)?);
        Ok(routes)
    }

    /// Returns `true` if the address is in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        let differs = |left: u128, right: u128, bits: u32| {
            let host_bits = bits.saturating_sub(u32::from(self.prefix));
            (left ^ right).checked_shr(host_bits).unwrap_or(0) != 0
        };
        match (self.network, address) {
            (IpAddr::V4(left), IpAddr::V4(right)) => {
                !differs(u32::from(left).into(), u32::from(right).into(), 32)
            }
            (IpAddr::V6(left), IpAddr::V6(right)) => !differs(left.into(), right.into(), 128),
            _ => false,
        }
    }
}

/// Returns the device of the most specific route from a local address and port to a peer. Packets to an address of this
/// machine use `lo`.
pub fn device_of_peer(routes: &[Route], local: &str, peer: &str) -> Option<String> {
    let address = |text: &str| text.parse::<SocketAddr>().ok().map(|address| address.ip().to_canonical());
    let (local, peer) = (address(local)?, address(peer)?);
    if peer.is_loopback() || peer == local {
        return Some("lo".to_owned());
    }
    // The first of several equal routes has the lowest metric.
    let found = routes.iter().rev().filter(|route| route.contains(peer)).max_by_key(|route| route.prefix);
    found.map(|route| route.device.clone())
}

/// Decodes `/proc/net/route`, whose addresses are hexadecimal numbers in the order of bytes of this machine.
///
/// # Errors
/// A line lacks a field.
pub fn decode_routes(text: &str) -> Result<Vec<Route>, Malformed> {
    let mut routes = Vec::new();
    for (index, line) in text.lines().enumerate().skip(1) {
        let mut fields = Fields::new(index, line);
        let device = fields.word("a device")?.to_owned();
        let network: u32 = fields.hexadecimal("an address")?;
        fields.skip(1, "a gateway")?;
        let flags: u32 = fields.hexadecimal("flags")?;
        fields.skip(3, "counters")?;
        let mask: u32 = fields.hexadecimal("a mask")?;
        let network = IpAddr::V4(Ipv4Addr::from(network.to_ne_bytes()));
        if flags & UP != 0 {
            routes.push(Route { device, network, prefix: mask.count_ones() as u8 });
        }
    }
    Ok(routes)
}

/// Decodes `/proc/net/ipv6_route`.
///
/// # Errors
/// A line lacks a field.
pub fn decode_ipv6_routes(text: &str) -> Result<Vec<Route>, Malformed> {
    let mut routes = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut fields = Fields::new(index, line);
        let network: u128 = fields.hexadecimal("an address of 32 digits")?;
        let prefix = fields.hexadecimal("a prefix")?;
        fields.skip(6, "a route")?;
        let flags: u32 = fields.hexadecimal("flags")?;
        let device = fields.word("a device")?.to_owned();
        if prefix > 128 {
            return Err(fields.malformed("a prefix of up to 128 bits"));
        }
        if flags & UP != 0 {
            routes.push(Route { device, network: IpAddr::V6(Ipv6Addr::from(network)), prefix });
        }
    }
    Ok(routes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_routes_of_both_families() {
        let network = u32::from_ne_bytes([10, 1, 0, 0]);
        let mask = u32::from_ne_bytes([255, 255, 0, 0]);
        let text = format!(
            "Iface Destination\neth0 {network:08X} 0 0001 0 0 0 {mask:08X} 0 0 0\ndown 0 0 0 0 0 0 0\n"
        );
        let routes = decode_routes(&text).unwrap();
        let [route] = &*routes else { panic!("{routes:?}") };
        assert_eq!((&*route.device, route.prefix), ("eth0", 16));
        assert!(route.contains([10, 1, 2, 3].into()) && !route.contains([10, 2, 2, 3].into()));
        let text =
            "fd000000000000000000000000000000 40 0 00 0 00000100 00000001 00000000 00000001     eth1\n";
        let routes = decode_ipv6_routes(text).unwrap();
        let [route] = &*routes else { panic!("{routes:?}") };
        assert_eq!((&*route.device, route.prefix), ("eth1", 64));
        assert!(route.contains("fd00::1".parse().unwrap()) && !route.contains("fe80::1".parse().unwrap()));
        let all = Route { prefix: 0, ..route.clone() };
        assert!(all.contains("fe80::1".parse().unwrap()) && !all.contains([10, 1, 2, 3].into()));
    }

    #[test]
    fn rejects_malformed_routes() {
        for text in ["x\neth0\n", "x\neth0 y 0 1 0 0 0 0\n", "x\neth0 0 0 1 0 0 0 z\n"] {
            assert!(decode_routes(text).is_err(), "{text}");
        }
        for text in ["x", "0 81 0 0 0 0 0 0 1 eth0\n", "0 40 0 0 0 0 0 0 1\n"] {
            assert!(decode_ipv6_routes(text).is_err(), "{text}");
        }
    }
}
