//! The machines of `isolane-proto`, the rings of `isolane-ring` and the streams of `isolane-engine`: no bytes and no way to cut them make one
//! panic, place a byte outside of the memory given for it, answer a command twice, or send what is not a PDU.

mod admin_commands;
mod control;
mod engine_stream;
mod host_end;
mod host_peer;
mod io;
mod pdus;
mod rings;
mod stream;
mod target_end;
mod target_peer;

pub(crate) use control::port;
pub(crate) use engine_stream::engine_stream;
pub(crate) use host_end::host_stream;
pub(crate) use host_peer::host_dialogue;
pub(crate) use io::io_command;
pub(crate) use rings::rings;
pub(crate) use target_end::target_stream;
pub(crate) use target_peer::target_dialogue;
