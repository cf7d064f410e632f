//! The fields that R2T, H2CData, and C2HData share (TCP 1.0 §3.6.2.8 to §3.6.2.10).

layout! {
    /// A part of a command's data.
    pub struct TransferFields[24] {
        /// CCCID: command identifier.
        8 => cccid: u16,
        /// TTAG: transfer tag; reserved in C2HData.
        10 => ttag: u16,
        /// DATAO or R2TO: offset in the command's data, in bytes.
        12 => offset: u32,
        /// DATAL or R2TL: length in bytes; never 0.
        16 => len: u32,
    }
}
