//! Events of a host's connection, and the commands that its driver submits.

use isolane_memory::Buffer;
use isolane_wire::CompletionEntry;
use isolane_wire::pdu::{IcResp, TermReq};

use crate::connection::FatalError;

/// The data of a command. The connection owns the buffer until the command is completed or
/// abandoned.
#[derive(Debug, Default)]
pub enum Data {
    /// No data.
    #[default]
    None,
    /// Data from the controller, of the length of the buffer.
    Read(Buffer),
    /// Data for the controller.
    Write(Buffer),
}

impl Data {
    /// The buffer.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Data::None => None,
            Data::Read(buffer) | Data::Write(buffer) => Some(buffer),
        }
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Data::None => 0,
            Data::Read(buffer) | Data::Write(buffer) => buffer.len(),
        }
    }
}

/// An event of a connection, in wire order.
#[derive(Debug)]
pub enum Event {
    /// ICResp was accepted: Connect can be submitted.
    Connected(IcResp),
    /// A command completed.
    Completed(Completed),
    /// The controller sent a TermReq. Nothing follows.
    Terminated(Box<TermReq>),
    /// The controller violated the protocol or missed a deadline.
    Fatal(FatalError),
}

/// A completed command.
#[derive(Debug)]
pub struct Completed {
    /// Tag chosen by the submitter.
    pub tag: u64,
    /// The completion; synthesized if a SUCCESS flag replaces the response.
    pub entry: CompletionEntry,
    /// The buffer of the command.
    pub buffer: Option<Buffer>,
    /// Whether all data digests were correct; if not, the data read is corrupted.
    pub digest_ok: bool,
}

/// Reason for a rejected command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitErrorKind {
    /// The maximum number of commands is in flight.
    #[error("the queue is full")]
    Full,
    /// The connection is not initialized yet: wait for [`Event::Connected`].
    #[error("the connection is not initialized yet")]
    NotConnected,
    /// The connection has ended.
    #[error("the connection has ended")]
    Ended,
}

/// A rejected command, with its data.
#[derive(Debug, thiserror::Error)]
#[error("{kind}")]
pub struct SubmitError {
    /// Reason.
    pub kind: SubmitErrorKind,
    /// Data of the command.
    pub data: Data,
}

/// A command that will never be completed because its connection has ended.
#[derive(Debug)]
pub struct Abandoned {
    /// Tag chosen by the submitter.
    pub tag: u64,
    /// The buffer of the command.
    pub buffer: Option<Buffer>,
    /// Whether any byte of it was sent; if not, the controller cannot have received it.
    pub sent: bool,
}
