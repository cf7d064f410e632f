//! Generation, CEh: a vendor specific page of each namespace of an Isolane target.
//!
//! A host reads it after every Connect. A changed generation means that the target or its machine
//! restarted, and `loses` specifies the acknowledged writes lost. A controller with this page sets
//! [`Controller::vendor_pages`](crate::identify::Controller), after the same signature.

/// Marks Isolane's formats: bytes 3072 to 3087 of Identify Controller, and the first bytes of each
/// vendor specific log page. A random UUID.
pub const SIGNATURE: [u8; 16] =
    [0xaa, 0x11, 0xf7, 0x01, 0x1d, 0x63, 0x43, 0x4c, 0xb2, 0xd8, 0x84, 0xdf, 0x28, 0xad, 0x65, 0xe2];

codes! {
    /// Acknowledged writes that are lost when the generation of a namespace changes.
    pub enum RestartLoss: u8 {
        Nothing = 0x01, "nothing";
        Cache = 0x02, "writes that are neither flushed nor written with FUA";
        Content = 0x03, "all content";
    }
}

layout! {
    /// The page.
    pub struct GenerationLog[64] {
        /// [`SIGNATURE`].
        0 => signature: [u8; 16],
        /// Version of the layout: [`GenerationLog::VERSION`]. Later ones only add fields.
        16 => version: u16,
        /// Writes lost when the generation changes, see [`RestartLoss`].
        18 => loses: u8,
        /// Namespace that the page is about.
        20 => nsid: u32,
        /// Generation: a UUID, most significant byte first.
        32 => generation: [u8; 16],
    }
}

impl GenerationLog {
    /// Version of the layout.
    pub const VERSION: u16 = 1;
}
