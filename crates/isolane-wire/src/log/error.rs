//! Error information, 01h (Base 1.4 §5.14.1.1).

use crate::Status;

layout! {
    /// One error; the log is a list of these, the newest first.
    pub struct ErrorEntry[64] {
        /// Number of this error since the controller started; 0 is an unused entry.
        0 => error_count: u64,
        /// Queue of the command.
        8 => sqid: u16,
        /// Command.
        10 => cid: u16,
        /// Status of the command.
        12 => status: Status,
        /// Location of the error in the command: byte in bits 7:0, bit in bits 10:8; FFFFh if
        /// unknown.
        14 => parameter_location: u16,
        /// First logical block that had the error.
        16 => lba: u64,
        /// Namespace.
        24 => nsid: u32,
        /// Log page with more vendor specific information.
        28 => vendor_log: u8,
        /// TRTYPE: transport.
        29 => trtype: u8,
        /// Command specific information.
        32 => command_specific: u64,
        /// Transport specific information.
        40 => transport_specific: u16,
    }
}
