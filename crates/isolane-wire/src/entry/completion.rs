//! The completion queue entry, 16 bytes (Base 1.4 §4.6; Fabrics 1.1 §2.2).

use crate::Status;

layout! {
    /// Completion of one command.
    #[derive(Copy, Hash)]
    pub struct CompletionEntry[16] {
        /// Command specific dword 0.
        0 => dw0: u32,
        /// Command specific dword 1.
        4 => dw1: u32,
        /// Submission queue head, unless flow control is disabled.
        8 => sqhd: u16,
        /// Reserved over Fabrics, zero.
        10 => sqid: u16,
        /// Command identifier.
        12 => cid: u16,
        /// Status of the command.
        14 => status: Status,
    }
}

const _: () = assert!(size_of::<CompletionEntry>() == CompletionEntry::LEN);

impl CompletionEntry {
    /// Returns dwords 0 and 1 as one number: the value of Property Get.
    pub fn value(&self) -> u64 {
        u64::from(self.dw1) << 32 | u64::from(self.dw0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_status_above_phase_tag() {
        let entry = CompletionEntry {
            dw0: 0x0403_0201,
            dw1: 0x0807_0605,
            sqhd: 0x0a09,
            sqid: 0x0c0b,
            cid: 0x0e0d,
            status: Status::TRANSIENT_TRANSPORT_ERROR.with_dnr(true),
        };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0x44, 0x80];
        assert_eq!(entry.encode(), bytes);
        assert_eq!(CompletionEntry::decode(&bytes), entry);
        assert_eq!(entry.value(), 0x0807_0605_0403_0201);
    }

    #[test]
    fn decode_ignores_phase_tag() {
        let mut bytes = CompletionEntry::default().encode();
        bytes[14] = 1;
        assert_eq!(CompletionEntry::decode(&bytes), CompletionEntry::default());
    }
}
