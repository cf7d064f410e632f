//! Control socket of a running program: its directory and its name.

pub mod dir;
