//! Events of a target's connection.

use isolane_memory::Buffer;
use isolane_wire::Status;
use isolane_wire::pdu::{IcReq, TermReq};

use super::permit::Permit;
use crate::connection::FatalError;

/// An event of a connection, in wire order.
#[derive(Debug)]
pub enum Event {
    /// ICReq was accepted and ICResp is queued. Connect must be the first command.
    Connected(IcReq),
    /// A command arrived.
    Command {
        /// Permit to complete; [`Connection::entry`](super::Connection::entry) returns the command.
        permit: Permit,
        /// Its data, according to SGL and opcode.
        transfer: Transfer,
    },
    /// All write data of a command arrived.
    Data {
        /// Permit to complete.
        permit: Permit,
        /// The buffer of [`receive_into`](super::Connection::receive_into) or
        /// [`request_data`](super::Connection::request_data).
        buffer: Buffer,
        /// Whether all data digests were correct. If not, the command fails with Transient
        /// Transport Error, and the connection stays open (TCP 1.0 §3.3.1.2).
        digest_ok: bool,
    },
    /// The host sent a TermReq. Nothing follows: close.
    Terminated(Box<TermReq>),
    /// The host violated the protocol or missed a deadline. A TermReq can be queued: see the
    /// [module](super).
    Fatal(FatalError),
}

/// Data of a command, according to SGL and opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// No data.
    None,
    /// Data from the host.
    FromHost {
        /// Length in bytes.
        len: u32,
        /// Its location.
        place: DataLocation,
    },
    /// Data to the host: the maximum for
    /// [`complete_with_data`](super::Connection::complete_with_data).
    ToHost {
        /// Length in bytes.
        len: u32,
    },
    /// The SGL does not match the command: complete it with this status (TCP 1.0 §3.3.2).
    Invalid(Status),
}

/// Location of write data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataLocation {
    /// In the capsule: call [`receive_into`](super::Connection::receive_into) now, or the data is
    /// skipped.
    InCapsule,
    /// At the host: request it with [`request_data`](super::Connection::request_data).
    Transport,
}
