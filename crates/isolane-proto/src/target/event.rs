//! Events of a target's connection.

use isolane_memory::Buffer;
use isolane_wire::Status;
use isolane_wire::pdu::{IcReq, TermReq};

use super::permit::Permit;
use crate::connection::FatalError;

/// An event of a connection, in wire order.
#[derive(Debug)]
pub enum Event {
    /// ICReq was accepted and ICResp is queued. Connect is expected as the first command.
    Connected(IcReq),
    /// A command arrived.
    Command {
        /// To be completed; [`Connection::entry`](super::Connection::entry) returns the command.
        permit: Permit,
        /// What its SGL and opcode say about its data.
        transfer: Transfer,
    },
    /// All write data of a command arrived.
    Data {
        /// To be completed.
        permit: Permit,
        /// The memory given to [`receive_into`](super::Connection::receive_into) or
        /// [`request_data`](super::Connection::request_data).
        buffer: Buffer,
        /// False if a data digest was wrong: the command fails with Transient Transport Error, the
        /// connection stays (TCP 1.0 §3.3.1.2).
        digest_ok: bool,
    },
    /// The host sent a TermReq. Nothing follows: close.
    Terminated(Box<TermReq>),
    /// The host broke the rules or its deadline. A TermReq may be queued: see the [module](super).
    Fatal(FatalError),
}

/// What a command's SGL and opcode say about its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// No data.
    None,
    /// Data from the host.
    FromHost {
        /// Bytes.
        len: u32,
        /// Where it is.
        place: DataLocation,
    },
    /// Data to the host: what [`complete_with_data`](super::Connection::complete_with_data) may send at most.
    ToHost {
        /// Bytes.
        len: u32,
    },
    /// The SGL does not fit the command: answer with this status (TCP 1.0 §3.3.2).
    Invalid(Status),
}

/// Where write data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataLocation {
    /// In the capsule: it follows now. Answer with [`receive_into`](super::Connection::receive_into), or it is
    /// skipped.
    InCapsule,
    /// At the host: ask for it with [`request_data`](super::Connection::request_data).
    Transport,
}
