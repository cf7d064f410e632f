//! Measurements: the raw TCP floor, and runs of Isolane paired with it.
//!
//! The floor is what loopback TCP gives to the best program that carries exactly the bytes NVMe/TCP
//! would carry and does nothing else. A figure of Isolane is only ever shown as a ratio to the floor
//! of the same run on the same machine.
//!
//! This crate shares no code with the protocol crates: a mistake there must not be able to hide here.

#![forbid(unsafe_code)]

pub mod capsules;
pub mod core;
pub mod floor;
pub mod measure;
