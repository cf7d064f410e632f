//! The isolated engine: network processing on cores of its own, for applications that attach through shared
//! memory.
//!
//! Invariant: no client is trusted; whatever one writes to its memory concerns that client alone.

#![forbid(unsafe_code)]
