//! Identify Controller, CNS 01h (Base 1.4 figure 251; Fabrics 1.1 figure 33; domain and discovery type: Base
//! 2.0).

use super::{
    Cmic, Ctratt, Fcatt, Fna, LogPageAttributes, Oacs, Oaes, Ofcs, Oncs, SglSupport, VendorPages,
    VolatileCache,
};
use crate::{Ascii, NqnField, registers::Vs};

layout! {
    /// Identify Controller data.
    pub struct Controller[4096] {
        /// VID: PCI vendor, 0 over Fabrics.
        0 => vid: u16,
        /// SSVID: PCI subsystem vendor, 0 over Fabrics.
        2 => ssvid: u16,
        /// SN: serial number.
        4 => sn: Ascii<20>,
        /// MN: model number.
        24 => mn: Ascii<40>,
        /// FR: firmware revision.
        64 => fr: Ascii<8>,
        /// RAB: recommended arbitration burst, 2^n commands.
        72 => rab: u8,
        /// IEEE: OUI of the vendor, lowest byte first.
        73 => ieee: [u8; 3],
        /// CMIC: multi-path and namespace sharing.
        76 => cmic: Cmic,
        /// MDTS: the most data of a command, 2^n units of CAP.MPSMIN; 0 is no limit.
        77 => mdts: u8,
        /// CNTLID: identifier of this controller.
        78 => cntlid: u16,
        /// VER: version, same as VS.
        80 => ver: Vs,
        /// RTD3R: time to resume from D3, in microseconds.
        84 => rtd3r_us: u32,
        /// RTD3E: time to enter D3, in microseconds.
        88 => rtd3e_us: u32,
        /// OAES: optional asynchronous events.
        92 => oaes: Oaes,
        /// CTRATT: attributes.
        96 => ctratt: Ctratt,
        /// RRLS: read recovery levels.
        100 => rrls: u16,
        /// CNTRLTYPE: I/O, discovery or administrative, see [`super::ControllerType`].
        111 => cntrltype: u8,
        /// FGUID: globally unique identifier of the FRU.
        112 => fguid: [u8; 16],
        /// CRDT1 to CRDT3: delays of a retry, in units of 100 ms.
        128 => crdt: [u16; 3],
        /// NVMSR: NVM subsystem report.
        253 => nvmsr: u8,
        /// VWCI: VPD write cycle information.
        254 => vwci: u8,
        /// MEC: management endpoint capabilities.
        255 => mec: u8,
        /// OACS: optional admin commands.
        256 => oacs: Oacs,
        /// ACL: Aborts at a time, 0's based.
        258 => acl: u8,
        /// AERL: Asynchronous Event Requests at a time, 0's based.
        259 => aerl: u8,
        /// FRMW: firmware updates, see [`super::firmware_updates`].
        260 => frmw: u8,
        /// LPA: log page attributes.
        261 => lpa: LogPageAttributes,
        /// ELPE: error log entries, 0's based.
        262 => elpe: u8,
        /// NPSS: power states, 0's based.
        263 => npss: u8,
        /// AVSCC: format of vendor specific admin commands.
        264 => avscc: u8,
        /// APSTA: autonomous power state transitions.
        265 => apsta: u8,
        /// WCTEMP: warning temperature in kelvins; 0 if unspecified.
        266 => wctemp_kelvin: u16,
        /// CCTEMP: critical temperature in kelvins; 0 if unspecified.
        268 => cctemp_kelvin: u16,
        /// MTFA: maximum time for firmware activation, in units of 100 ms.
        270 => mtfa: u16,
        /// HMPRE: host memory buffer preferred size, in 4 KiB.
        272 => hmpre: u32,
        /// HMMIN: host memory buffer minimum size, in 4 KiB.
        276 => hmmin: u32,
        /// TNVMCAP: total capacity in bytes.
        280 => tnvmcap_bytes: u128,
        /// UNVMCAP: unallocated capacity in bytes.
        296 => unvmcap_bytes: u128,
        /// RPMBS: replay protected memory block.
        312 => rpmbs: u32,
        /// EDSTT: time of the extended device self-test, in minutes.
        316 => edstt: u16,
        /// DSTO: device self-test options.
        318 => dsto: u8,
        /// FWUG: firmware update granularity, in 4 KiB.
        319 => fwug: u8,
        /// KAS: keep alive granularity, in units of 100 ms; 0 is no keep alive.
        320 => kas: u16,
        /// HCTMA: host controlled thermal management.
        322 => hctma: u16,
        /// MNTMT: minimum thermal management temperature in kelvins.
        324 => mntmt_kelvin: u16,
        /// MXTMT: maximum thermal management temperature in kelvins.
        326 => mxtmt_kelvin: u16,
        /// SANICAP: sanitize capabilities.
        328 => sanicap: u32,
        /// HMMINDS: host memory buffer minimum descriptor size, in 4 KiB.
        332 => hmminds: u32,
        /// HMMAXD: host memory buffer maximum descriptor entries.
        336 => hmmaxd: u16,
        /// NSETIDMAX: highest NVM set identifier.
        338 => nsetidmax: u16,
        /// ENDGIDMAX: highest endurance group identifier.
        340 => endgidmax: u16,
        /// ANATT: longest time in the transition state, in seconds.
        342 => anatt_s: u8,
        /// ANACAP: asymmetric namespace access capabilities.
        343 => anacap: u8,
        /// ANAGRPMAX: highest ANA group identifier.
        344 => anagrpmax: u32,
        /// NANAGRPID: number of ANA groups.
        348 => nanagrpid: u32,
        /// PELS: persistent event log size, in 64 KiB.
        352 => pels: u32,
        /// DID: domain identifier.
        356 => did: u16,
        /// CQT: command quiesce time in milliseconds (Base 2.1); 0 is not reported.
        386 => cqt_ms: u16,
        /// SQES: sizes of a submission queue entry, 2^n bytes: minimum in bits 3:0, maximum in 7:4.
        512 => sqes: u8,
        /// CQES: sizes of a completion queue entry, 2^n bytes: minimum in bits 3:0, maximum in 7:4.
        513 => cqes: u8,
        /// MAXCMD: the most commands to have outstanding on one I/O queue.
        514 => maxcmd: u16,
        /// NN: highest namespace identifier.
        516 => nn: u32,
        /// ONCS: optional NVM commands.
        520 => oncs: Oncs,
        /// FUSES: fused operations.
        522 => fuses: u16,
        /// FNA: format attributes.
        524 => fna: Fna,
        /// VWC: volatile write cache.
        525 => vwc: VolatileCache,
        /// AWUN: atomic write unit in normal operation, in logical blocks, 0's based.
        526 => awun: u16,
        /// AWUPF: atomic write unit over a power failure, in logical blocks, 0's based.
        528 => awupf: u16,
        /// NVSCC: format of vendor specific NVM commands.
        530 => nvscc: u8,
        /// NWPC: namespace write protection capabilities.
        531 => nwpc: u8,
        /// ACWU: atomic compare and write unit, in logical blocks, 0's based.
        532 => acwu: u16,
        /// OCFS: formats of Copy.
        534 => ocfs: u16,
        /// SGLS: SGL support.
        536 => sgls: SglSupport,
        /// MNAN: most namespaces allowed; 0 is NN.
        540 => mnan: u32,
        /// SUBNQN: name of the subsystem.
        768 => subnqn: NqnField,
        /// IOCCSZ: longest command capsule of an I/O queue, in 16 bytes: 4 and the in-capsule data.
        1792 => ioccsz: u32,
        /// IORCSZ: longest response capsule of an I/O queue, in 16 bytes: 1.
        1796 => iorcsz: u32,
        /// ICDOFF: offset of in-capsule data after the entry, in units of 16 bytes; 0 on TCP.
        1800 => icdoff: u16,
        /// FCATT: fabrics controller attributes.
        1802 => fcatt: Fcatt,
        /// MSDBD: most SGL data blocks of a command: 1 on TCP.
        1803 => msdbd: u8,
        /// OFCS: optional fabrics commands.
        1804 => ofcs: Ofcs,
        /// DCTYPE: kind of discovery controller; 0 is not reported.
        1806 => dctype: u8,
        /// PSD0 to PSD31: power states.
        2048 => psd: [PowerState; 32],
        /// Vendor specific: [`crate::log::SIGNATURE`] of an Isolane target.
        3072 => vendor_signature: [u8; 16],
        /// Vendor specific: log pages after the signature.
        3088 => vendor_pages: VendorPages,
    }
}

layout! {
    /// Power state descriptor, its first fields (Base 1.4 figure 252).
    #[derive(Copy)]
    pub struct PowerState[32] {
        /// MP: maximum power, in centiwatts (or 0.1 mW, by MXPS).
        0 => mp: u16,
        /// MXPS (bit 0) and NOPS (bit 1).
        3 => flags: u8,
        /// ENLAT: entry latency in microseconds.
        4 => enlat_us: u32,
        /// EXLAT: exit latency in microseconds.
        8 => exlat_us: u32,
        /// RRT: relative read throughput.
        12 => rrt: u8,
        /// RRL: relative read latency.
        13 => rrl: u8,
        /// RWT: relative write throughput.
        14 => rwt: u8,
        /// RWL: relative write latency.
        15 => rwl: u8,
    }
}

impl Controller {
    /// Returns the in-capsule data limit of an I/O queue in bytes, from IOCCSZ.
    pub fn in_capsule_len(&self) -> u64 {
        (u64::from(self.ioccsz) * 16).saturating_sub(64)
    }

    /// The most data of one command in bytes with memory pages of 2^(12 + `mpsmin`) bytes; `None` is no
    /// limit.
    pub fn transfer_len_max(&self, mpsmin: u8) -> Option<u64> {
        let shift = 12 + u32::from(mpsmin) + u32::from(self.mdts);
        if self.mdts == 0 { None } else { Some(1_u64.checked_shl(shift).unwrap_or(u64::MAX)) }
    }
}
