//! Namespace structures: CNS 00h, 05h, 06h, and 08h (Base 1.4 figure 249; NVM 1.0 §4.1.5; Base 2.0
//! figure 280).

use super::{Dlfeat, Flbas, LbaFormat, NamespaceAttributes, NamespaceStatus, Nmic, Nsfeat};

layout! {
    /// Identify Namespace, CNS 00h.
    pub struct Namespace[4096] {
        /// NSZE: size in logical blocks.
        0 => nsze: u64,
        /// NCAP: capacity in logical blocks.
        8 => ncap: u64,
        /// NUSE: use in logical blocks.
        16 => nuse: u64,
        /// NSFEAT: features.
        24 => nsfeat: Nsfeat,
        /// NLBAF: LBA formats, 0's based.
        25 => nlbaf: u8,
        /// FLBAS: the format in use.
        26 => flbas: Flbas,
        /// MC: metadata capabilities.
        27 => mc: u8,
        /// DPC: end-to-end protection capabilities.
        28 => dpc: u8,
        /// DPS: end-to-end protection settings.
        29 => dps: u8,
        /// NMIC: sharing.
        30 => nmic: Nmic,
        /// RESCAP: reservation capabilities.
        31 => rescap: u8,
        /// FPI: format progress.
        32 => fpi: u8,
        /// DLFEAT: what deallocated blocks read as.
        33 => dlfeat: Dlfeat,
        /// NAWUN: atomic write unit in normal operation, in logical blocks, 0's based.
        34 => nawun: u16,
        /// NAWUPF: atomic write unit over a power failure, in logical blocks, 0's based.
        36 => nawupf: u16,
        /// NACWU: atomic compare and write unit, in logical blocks, 0's based.
        38 => nacwu: u16,
        /// NABSN: atomic boundary in normal operation, in logical blocks, 0's based.
        40 => nabsn: u16,
        /// NABO: offset of the atomic boundaries, in logical blocks.
        42 => nabo: u16,
        /// NABSPF: atomic boundary over a power failure, in logical blocks, 0's based.
        44 => nabspf: u16,
        /// NOIOB: optimal I/O boundary in logical blocks.
        46 => noiob: u16,
        /// NVMCAP: capacity in bytes.
        48 => nvmcap_bytes: u128,
        /// NPWG: preferred write granularity, in logical blocks, 0's based.
        64 => npwg: u16,
        /// NPWA: preferred write alignment, in logical blocks, 0's based.
        66 => npwa: u16,
        /// NPDG: preferred deallocate granularity, in logical blocks, 0's based.
        68 => npdg: u16,
        /// NPDA: preferred deallocate alignment, in logical blocks, 0's based.
        70 => npda: u16,
        /// NOWS: optimal write size, in logical blocks, 0's based.
        72 => nows: u16,
        /// MSSRL: most blocks of one source range of Copy.
        74 => mssrl: u16,
        /// MCL: most blocks of Copy.
        76 => mcl: u32,
        /// MSRC: most source ranges of Copy, 0's based.
        80 => msrc: u8,
        /// ANAGRPID: ANA group.
        92 => anagrpid: u32,
        /// NSATTR: attributes.
        99 => nsattr: NamespaceAttributes,
        /// NVMSETID: NVM set.
        100 => nvmsetid: u16,
        /// ENDGID: endurance group.
        102 => endgid: u16,
        /// NGUID: globally unique identifier, big endian as it is written.
        104 => nguid: [u8; 16],
        /// EUI64, big endian as it is written.
        120 => eui64: [u8; 8],
        /// LBAF: the formats.
        128 => lbaf: [LbaFormat; 64],
    }
}

impl Namespace {
    /// The format in use.
    pub fn format(&self) -> LbaFormat {
        self.lbaf[usize::from(self.flbas.index()) % self.lbaf.len()]
    }

    /// Length of a logical block in bytes; `None` if the format's LBADS makes no sense (under 512 bytes or
    /// over 2 GiB), as it is in the structure of an inactive namespace.
    pub fn block_len(&self) -> Option<u32> {
        let lbads = self.format().lbads();
        (9..=31).contains(&lbads).then(|| 1 << lbads)
    }

    /// Is it the structure of an active namespace? All zero means it is not.
    pub fn is_active(&self) -> bool {
        self.ncap != 0
    }
}

layout! {
    /// I/O Command Set specific Identify Namespace of the NVM command set, CNS 05h CSI 00h.
    pub struct NvmNamespace[4096] {
        /// LBSTM: logical block storage tag mask.
        0 => lbstm: u64,
        /// PIC: protection information capabilities.
        8 => pic: u8,
        /// ELBAF: extensions of the LBA formats.
        12 => elbaf: [u32; 64],
    }
}

layout! {
    /// I/O Command Set specific Identify Controller of the NVM command set, CNS 06h CSI 00h.
    pub struct NvmController[4096] {
        /// VSL: limit of Verify, 2^n units of CAP.MPSMIN; 0 is no limit.
        0 => vsl: u8,
        /// WZSL: limit of Write Zeroes, 2^n units of CAP.MPSMIN; 0 is no limit.
        1 => wzsl: u8,
        /// WUSL: limit of Write Uncorrectable, 2^n units of CAP.MPSMIN; 0 is no limit.
        2 => wusl: u8,
        /// DMRL: most ranges of Dataset Management; 0 is no limit.
        3 => dmrl: u8,
        /// DMRSL: most blocks of one range of Dataset Management; 0 is no limit.
        4 => dmrsl: u32,
        /// DMSL: most blocks of Dataset Management; 0 is no limit.
        8 => dmsl: u64,
    }
}

layout! {
    /// I/O Command Set independent Identify Namespace, CNS 08h.
    pub struct IndependentNamespace[4096] {
        /// NSFEAT: common features.
        0 => nsfeat: u8,
        /// NMIC: sharing.
        1 => nmic: Nmic,
        /// RESCAP: reservation capabilities.
        2 => rescap: u8,
        /// FPI: format progress.
        3 => fpi: u8,
        /// ANAGRPID: ANA group.
        4 => anagrpid: u32,
        /// NSATTR: attributes.
        8 => nsattr: NamespaceAttributes,
        /// NVMSETID: NVM set.
        10 => nvmsetid: u16,
        /// ENDGID: endurance group.
        12 => endgid: u16,
        /// NSTAT: status.
        14 => nstat: NamespaceStatus,
    }
}
