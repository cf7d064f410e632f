//! The binary interface of libibverbs, as Debian's headers of rdma-core 44 define it.
//!
//! Structures have the names of the headers without their prefix, and the same fields in the same order.

mod attributes;
mod cm;
mod constants;
mod objects;
#[cfg(test)]
mod tests;
mod work;

pub use attributes::*;
pub use cm::*;
pub use constants::*;
pub use objects::*;
pub use work::*;

/// Slot of a function that this device does not support.
pub type Absent = usize;
