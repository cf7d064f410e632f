//! Targets for the connections of `isolane-proto`, the rings of `isolane-shm`, the streams of
//! `isolane-engine`, and the queue pairs of `isolane-verbs`.
//!
//! Invariant: no input, however it is split, causes a panic, a byte outside of its buffer, a second completion
//! of a command, or an invalid PDU.

mod admin_commands;
mod control;
mod engine_stream;
mod host_harness;
mod host_peer;
mod io;
mod pdus;
mod rings;
mod splitter;
mod target_harness;
mod target_peer;
mod verbs_peer;

pub(crate) use control::port;
pub(crate) use engine_stream::engine_stream;
pub(crate) use host_harness::host_stream;
pub(crate) use host_peer::host_dialogue;
pub(crate) use io::io_command;
pub(crate) use rings::rings;
pub(crate) use target_harness::target_stream;
pub(crate) use target_peer::target_dialogue;
pub(crate) use verbs_peer::verbs_peer;
