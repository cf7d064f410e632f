//! Stages of the host, C0h: a vendor specific page of each controller of an Isolane target.
//!
//! It describes the connections and slow operations of all controllers of the host that reads it, named by NQN and
//! host identifier. A controller with this page sets [`Controller::vendor_pages`](crate::identify::Controller), after
//! the same signature.

layout! {
    /// Start of the page. The text follows: a JSON document, as `isolane snapshot` writes it.
    pub struct HostStagesHeader[64] {
        /// [`SIGNATURE`](super::SIGNATURE).
        0 => signature: [u8; 16],
        /// Version of the layout: [`HostStagesHeader::VERSION`]. Later ones only add fields.
        16 => version: u16,
        /// Length of the text in bytes, at most [`HostStagesHeader::MAX_TEXT`].
        20 => text_bytes: u32,
        /// Number of connections that did not fit.
        24 => connections_left_out: u32,
        /// Number of slow operations that did not fit.
        28 => slow_left_out: u32,
        /// CRC32C of the text, see [`digest`](crate::digest). Parts of two pages do not match it.
        32 => text_crc: u32,
    }
}

impl HostStagesHeader {
    /// Version of the layout.
    pub const VERSION: u16 = 1;
    /// Length of the page in bytes, with the header; zeroes follow the text.
    pub const MAX_PAGE: usize = 256 << 10;
    /// Maximum length of the text in bytes.
    pub const MAX_TEXT: usize = Self::MAX_PAGE - Self::LEN;
}
