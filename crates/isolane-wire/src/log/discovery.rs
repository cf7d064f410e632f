//! Discovery log, 70h: a header and one entry per port of a subsystem (Fabrics 1.1 §5.3; flags: Base 2.0).

use crate::{Ascii, NqnField};

layout! {
    /// First 1,024 bytes of the page.
    pub struct DiscoveryHeader[1024] {
        /// GENCTR: incremented with every change of the log.
        0 => genctr: u64,
        /// NUMREC: number of entries.
        8 => numrec: u64,
        /// RECFMT: 0 is the only format.
        16 => recfmt: u16,
    }
}

layout! {
    /// One path to a subsystem.
    pub struct DiscoveryEntry[1024] {
        /// TRTYPE, see [`Transport`].
        0 => trtype: u8,
        /// ADRFAM, see [`AddressFamily`].
        1 => adrfam: u8,
        /// SUBTYPE, see [`SubsystemType`].
        2 => subtype: u8,
        /// TREQ.
        3 => treq: TransportRequirements,
        /// PORTID: number of the port.
        4 => portid: u16,
        /// CNTLID: FFFFh in the dynamic model.
        6 => cntlid: u16,
        /// ASQSZ: entries of an admin queue; not 0's based, at least 32.
        8 => asqsz: u16,
        /// EFLAGS.
        10 => eflags: DiscoveryFlags,
        /// TRSVCID: port number in decimal.
        32 => trsvcid: Ascii<32>,
        /// SUBNQN.
        256 => subnqn: NqnField,
        /// TRADDR: address as text.
        512 => traddr: Ascii<256>,
        /// TSAS of TCP: SECTYPE, see [`SecureChannel`].
        768 => sectype: u8,
    }
}

impl DiscoveryEntry {
    /// CNTLID of the dynamic controller model.
    pub const CNTLID_DYNAMIC: u16 = 0xffff;
}

codes! {
    /// TRTYPE.
    pub enum Transport: u8 {
        Rdma = 0x01, "RDMA";
        FibreChannel = 0x02, "Fibre Channel";
        Tcp = 0x03, "TCP";
        IntraHost = 0xfe, "intra-host";
    }
}

codes! {
    /// ADRFAM.
    pub enum AddressFamily: u8 {
        Ipv4 = 0x01, "IPv4";
        Ipv6 = 0x02, "IPv6";
        InfiniBand = 0x03, "InfiniBand";
        FibreChannel = 0x04, "Fibre Channel";
        IntraHost = 0xfe, "intra-host";
    }
}

codes! {
    /// SUBTYPE.
    pub enum SubsystemType: u8 {
        Referral = 0x01, "referral to another discovery service";
        Nvm = 0x02, "NVM subsystem";
        CurrentDiscovery = 0x03, "this discovery service";
    }
}

codes! {
    /// SECTYPE.
    pub enum SecureChannel: u8 {
        None = 0x00, "no security";
        Tls12 = 0x01, "TLS 1.2";
        Tls13 = 0x02, "TLS 1.3";
    }
}

bits! {
    /// TREQ.
    pub struct TransportRequirements(u8) {
        /// Secure channel: 00b unspecified, 01b required, 10b not required.
        secure_channel / with_secure_channel: u8 = [1:0],
        /// Submission queue flow control can be disabled.
        disable_sq_flow_control / with_disable_sq_flow_control: bool = [2:2],
    }
}

impl TransportRequirements {
    /// Secure channel: not required.
    pub const NOT_REQUIRED: u8 = 0b10;
}

bits! {
    /// EFLAGS.
    pub struct DiscoveryFlags(u16) {
        /// DUPRETINFO: other entries return the same information.
        duplicate / with_duplicate: bool = [0:0],
        /// EPCSD: explicit persistent connections are supported.
        persistent / with_persistent: bool = [1:1],
        /// NCC: no CDC connectivity.
        no_cdc / with_no_cdc: bool = [2:2],
    }
}
