//! Controller properties: the registers of NVMe as Property Get and Set reach them (Base 1.4 §3.1; Fabrics
//! 1.1 §3.4).

/// Offset of a property.
pub mod offset {
    /// CAP, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// VS, 4 bytes.
    pub const VS: u32 = 0x08;
    /// CC, 4 bytes.
    pub const CC: u32 = 0x14;
    /// CSTS, 4 bytes.
    pub const CSTS: u32 = 0x1c;
    /// NSSR, 4 bytes.
    pub const NSSR: u32 = 0x20;
    /// CRTO, 4 bytes (Base 2.0).
    pub const CRTO: u32 = 0x68;
}

bits! {
    /// CAP: controller capabilities.
    pub struct Cap(u64) {
        /// MQES: maximum entries of a queue, 0's based.
        mqes / with_mqes: u16 = [15:0],
        /// CQR: queues must be contiguous; always 1 over Fabrics.
        cqr / with_cqr: bool = [16:16],
        /// AMS: arbitration mechanisms beyond round robin.
        ams / with_ams: u8 = [18:17],
        /// TO: maximum time from CC.EN to CSTS.RDY, in units of 500 ms.
        to / with_to: u8 = [31:24],
        /// DSTRD: doorbell stride; 0 over Fabrics.
        dstrd / with_dstrd: u8 = [35:32],
        /// NSSRS: subsystem reset is supported.
        nssrs / with_nssrs: bool = [36:36],
        /// CSS: command sets; bit 0 is the NVM command set.
        css / with_css: u8 = [44:37],
        /// MPSMIN: minimum memory page, 2^(12 + MPSMIN) bytes.
        mpsmin / with_mpsmin: u8 = [51:48],
        /// MPSMAX: maximum memory page, 2^(12 + MPSMAX) bytes.
        mpsmax / with_mpsmax: u8 = [55:52],
        /// CRMS: controller ready modes (Base 2.0).
        crms / with_crms: u8 = [60:59],
    }
}

bits! {
    /// VS: implemented version of the specification; also VER of Identify Controller.
    pub struct Vs(u32) {
        /// TER: tertiary version.
        ter / with_ter: u8 = [7:0],
        /// MNR: minor version.
        mnr / with_mnr: u8 = [15:8],
        /// MJR: major version.
        mjr / with_mjr: u16 = [31:16],
    }
}

impl Vs {
    /// NVMe 1.4, claimed by Isolane.
    pub const V1_4: Self = Self(0x0001_0400);
}

impl core::fmt::Display for Vs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{}", self.mjr(), self.mnr())?;
        if self.ter() != 0 { write!(f, ".{}", self.ter()) } else { Ok(()) }
    }
}

bits! {
    /// CC: controller configuration.
    pub struct Cc(u32) {
        /// EN: enable.
        en / with_en: bool = [0:0],
        /// CSS: command set selected; 000b is NVM, 110b all supported, 111b admin only.
        css / with_css: u8 = [6:4],
        /// MPS: memory page, 2^(12 + MPS) bytes.
        mps / with_mps: u8 = [10:7],
        /// AMS: arbitration mechanism selected.
        ams / with_ams: u8 = [13:11],
        /// SHN: shutdown notification; 00b none, 01b normal, 10b abrupt.
        shn / with_shn: u8 = [15:14],
        /// IOSQES: size of an I/O submission queue entry, 2^n bytes; 6.
        iosqes / with_iosqes: u8 = [19:16],
        /// IOCQES: size of an I/O completion queue entry, 2^n bytes; 4.
        iocqes / with_iocqes: u8 = [23:20],
        /// CRIME: controller ready independent of media (Base 2.0).
        crime / with_crime: bool = [24:24],
    }
}

impl Cc {
    /// SHN: no shutdown.
    pub const SHN_NONE: u8 = 0b00;
    /// SHN: normal shutdown.
    pub const SHN_NORMAL: u8 = 0b01;
    /// IOSQES: 64 bytes.
    pub const IOSQES_64: u8 = 6;
    /// IOCQES: 16 bytes.
    pub const IOCQES_16: u8 = 4;

    /// Enabled with the NVM command set, 4 KiB pages, and standard entry sizes, as written by
    /// hosts.
    pub fn enabled() -> Self {
        Self(0).with_en(true).with_iosqes(Self::IOSQES_64).with_iocqes(Self::IOCQES_16)
    }
}

bits! {
    /// CSTS: controller status.
    pub struct Csts(u32) {
        /// RDY: ready for commands.
        rdy / with_rdy: bool = [0:0],
        /// CFS: controller fatal status.
        cfs / with_cfs: bool = [1:1],
        /// SHST: shutdown status; 00b none, 01b in progress, 10b complete.
        shst / with_shst: u8 = [3:2],
        /// NSSRO: subsystem reset occurred.
        nssro / with_nssro: bool = [4:4],
        /// PP: processing paused.
        pp / with_pp: bool = [5:5],
    }
}

impl Csts {
    /// SHST: shutdown in progress.
    pub const SHST_OCCURRING: u8 = 0b01;
    /// SHST: shutdown complete.
    pub const SHST_COMPLETE: u8 = 0b10;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn cap_has_each_field_in_its_place() {
        let cap = Cap(0)
            .with_mqes(0x1234)
            .with_cqr(true)
            .with_ams(2)
            .with_to(0x56)
            .with_dstrd(7)
            .with_nssrs(true)
            .with_css(0x41)
            .with_mpsmin(3)
            .with_mpsmax(9)
            .with_crms(1);
        // 59 (crms 1) | 52 (9) | 48 (3) | 37 (41h) | 36 (1) | 32 (7) | 24 (56h) | 17 (2) | 16 (1) | 1234h
        assert_eq!(cap.0, 0x0893_0837_5605_1234);
        assert_eq!((cap.to(), cap.css(), cap.mpsmax()), (0x56, 0x41, 9));
    }

    #[test]
    fn cc_as_a_host_enables_it() {
        assert_eq!(Cc::enabled().0, 0x0046_0001);
        let cc = Cc(0).with_css(5).with_mps(0xa).with_ams(3).with_shn(2).with_crime(true);
        assert_eq!(cc.0, 0x0100_9d50);
    }

    #[test]
    fn csts_has_each_field_in_its_place() {
        let csts = Csts(0).with_rdy(true).with_shst(Csts::SHST_COMPLETE).with_pp(true);
        assert_eq!(csts.0, 0b10_1001);
        assert!(Csts(2).cfs() && Csts(16).nssro());
    }

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(format!("{} {}", Vs::V1_4, Vs(0).with_mjr(1).with_mnr(2).with_ter(1)), "1.4 1.2.1");
        assert_eq!(Vs::V1_4, Vs(0).with_mjr(1).with_mnr(4));
    }
}
