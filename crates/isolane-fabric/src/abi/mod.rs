//! Binary interface of libfabric 1.17 to 2.x: structures and numbers of its headers.
//!
//! libfabric allocates `fi_info` and everything below it; the structures here are the prefix that all versions share.

mod attributes;
mod constants;
mod fid;
mod info;
mod objects;
#[cfg(test)]
mod tests;

pub use attributes::*;
pub use constants::*;
pub use fid::*;
pub use info::*;
pub use objects::*;
