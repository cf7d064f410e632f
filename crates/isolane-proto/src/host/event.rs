//! Events of a host's connection, and the commands that its driver submits.

use isolane_memory::Buffer;
use isolane_wire::CompletionEntry;
use isolane_wire::pdu::{IcResp, TermReq};

use crate::connection::FatalError;

/// The data of a command. The buffer is with the queue until the command is completed or abandoned.
#[derive(Debug, Default)]
pub enum Data {
    /// None.
    #[default]
    None,
    /// Data from the controller, as many bytes as the buffer has.
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

    /// Bytes.
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
    /// ICResp was accepted: Connect may be submitted.
    Connected(IcResp),
    /// A command ended.
    Completed(Completed),
    /// The controller sent a TermReq. Nothing follows.
    Terminated(Box<TermReq>),
    /// The controller broke the rules or its deadline.
    Fatal(FatalError),
}

/// The end of a command.
#[derive(Debug)]
pub struct Completed {
    /// Tag chosen by the submitter.
    pub tag: u64,
    /// The result; made up from the SUCCESS flag where that stands for the response.
    pub entry: CompletionEntry,
    /// The memory given with the command.
    pub buffer: Option<Buffer>,
    /// False if a data digest was wrong: what was read is not what the controller sent.
    pub digest_ok: bool,
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitErrorKind {
    /// As many commands are in flight as the queue holds.
    #[error("the queue is full")]
    Full,
    /// The connection is not initialised yet: wait for [`Event::Connected`].
    #[error("the connection is not initialised yet")]
    NotConnected,
    /// The connection has ended.
    #[error("the connection has ended")]
    Ended,
}

/// A command that was not taken, and its data.
#[derive(Debug, thiserror::Error)]
#[error("{kind}")]
pub struct SubmitError {
    /// Why.
    pub kind: SubmitErrorKind,
    /// Data of the command.
    pub data: Data,
}

/// A command that will never be completed because its connection has ended.
#[derive(Debug)]
pub struct Abandoned {
    /// Tag chosen by the submitter.
    pub tag: u64,
    /// The memory given with the command.
    pub buffer: Option<Buffer>,
    /// Whether any byte of it was given to the kernel: if not, the controller cannot have seen it.
    pub sent: bool,
}
