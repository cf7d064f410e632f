//! Bit fields of the namespace structures.

bits! {
    /// NSFEAT.
    pub struct Nsfeat(u8) {
        /// NSABP: NAWUN, NAWUPF and NACWU apply instead of the controller's.
        atomics / with_atomics: bool = [1:1],
        /// UIDREUSE: NGUID and EUI64 are never used again.
        unique_ids / with_unique_ids: bool = [3:3],
        /// OPTPERF: NPWG, NPWA, NPDG, NPDA and NOWS are defined.
        optimal_performance / with_optimal_performance: bool = [4:4],
    }
}

bits! {
    /// FLBAS.
    pub struct Flbas(u8) {
        /// Low bits of the format's number.
        index_low / with_index_low: u8 = [3:0],
        /// High bits of the format's number.
        index_high / with_index_high: u8 = [6:5],
    }
}

impl Flbas {
    /// The number of the format in use: 0 to 63.
    pub fn index(self) -> u8 {
        self.index_high() * 16 + self.index_low()
    }
}

bits! {
    /// LBA format.
    pub struct LbaFormat(u32) {
        /// MS: metadata per block in bytes.
        ms / with_ms: u16 = [15:0],
        /// LBADS: block length, 2^n bytes.
        lbads / with_lbads: u8 = [23:16],
        /// RP: relative performance; 00b is the best.
        rp / with_rp: u8 = [25:24],
    }
}

bits! {
    /// NMIC.
    pub struct Nmic(u8) {
        /// Several controllers may attach the namespace.
        shared / with_shared: bool = [0:0],
    }
}

bits! {
    /// DLFEAT.
    pub struct Dlfeat(u8) {
        /// Contents of deallocated blocks: 000b unspecified, 001b zeroes, 010b ones.
        read / with_read: u8 = [2:0],
        /// DEAC of Write Zeroes is supported.
        write_zeroes_deallocate / with_write_zeroes_deallocate: bool = [3:3],
        /// The guard of deallocated blocks is the CRC of their contents.
        guard / with_guard: bool = [4:4],
    }
}

impl Dlfeat {
    /// Deallocated blocks: unspecified.
    pub const READ_UNKNOWN: u8 = 0b000;
    /// Deallocated blocks read as zeroes.
    pub const READ_ZEROES: u8 = 0b001;
}

bits! {
    /// NSATTR.
    pub struct NamespaceAttributes(u8) {
        /// Write protected.
        write_protected / with_write_protected: bool = [0:0],
    }
}

bits! {
    /// NSTAT.
    pub struct NamespaceStatus(u8) {
        /// NRDY: ready.
        ready / with_ready: bool = [0:0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_hosts_look_for_them() {
        assert_eq!(Nsfeat(0).with_atomics(true).with_unique_ids(true).with_optimal_performance(true).0, 0x1a);
        assert_eq!(LbaFormat(0).with_ms(0x1234).with_lbads(12).with_rp(2).0, 0x020c_1234);
        assert_eq!(Dlfeat(0).with_read(1).with_write_zeroes_deallocate(true).with_guard(true).0, 0x19);
        assert_eq!(Flbas(0b0101_0011).index(), 0b10_0011);
        assert_eq!((Nmic(1).shared(), NamespaceAttributes(1).write_protected()), (true, true));
        assert!(NamespaceStatus(1).ready());
    }
}
