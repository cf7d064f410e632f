//! Local addresses: each is a device for unmodified programs.

use std::io;
use std::net::IpAddr;

/// An address of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub address: IpAddr,
    /// Name of its network interface.
    pub name: String,
    /// Index of its network interface.
    pub interface: u32,
}

/// Returns the name of the device of the address at `index` of [`local_addresses`].
pub fn device_name(index: usize) -> String {
    format!("isolane{index}")
}

/// Returns the addresses of the interfaces that are up, with the loopback ones last. Addresses that are valid on one
/// link only are left out.
///
/// # Errors
/// The error of the system.
pub fn local_addresses() -> io::Result<Vec<LocalAddress>> {
    let is_global = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    let interfaces = if_addrs::get_if_addrs()?.into_iter().filter(|found| found.is_oper_up());
    let mut found: Vec<LocalAddress> = interfaces
        .map(|found| LocalAddress {
            address: found.ip(),
            interface: found.index.unwrap_or(0),
            name: found.name,
        })
        .filter(|local| is_global(&local.address))
        .collect();
    found.sort_by_key(|local| (local.address.is_loopback(), local.interface));
    Ok(found)
}
