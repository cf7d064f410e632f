//! IDs of the kinds of objects.

/// TCP stream, with its socket ([`StreamLayout`](crate::stream::StreamLayout)).
pub const STREAM: u16 = 1;
/// Volume that the engine connects to (`isolane_host::via_engine::wire`), without descriptors.
pub const VOLUME: u16 = 2;
/// First ID for kinds of other crates.
pub const FIRST_EXTERNAL: u16 = 0x8000;
