//! Measurements: the raw TCP floor, and rows of Isolane and its peers measured beside it.
//!
//! The floor is what loopback TCP gives to the best program that carries exactly the bytes NVMe/TCP
//! would carry and does nothing else. A figure of Isolane stands beside that of the
//! floor in the same run on the same machine, with their ratio.
//!
//! This crate shares no code with the protocol crates: a mistake there must not be able to hide here. Only
//! [`streams`] links what applications of an engine link.

#![forbid(unsafe_code)]

pub mod capsules;
pub mod core;
pub mod floor;
pub mod measure;
mod processor;
pub mod streams;
mod turns;
