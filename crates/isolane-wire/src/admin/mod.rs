//! Admin commands (Base 1.4 §5).
//!
//! Each command is encoded to and decoded from a [`SubmissionEntry`]. The caller dispatches on the
//! opcode ([`crate::opcode::AdminOpcode`]); the queue sets the data pointer.

mod abort;
mod async_event;
mod features;
mod identify;
mod log_page;
#[cfg(test)]
mod tests;

pub use abort::{AbortCommand, AbortResponse};
pub use async_event::{AsyncEvent, AsyncEventType, Notice};
pub use features::{GetFeaturesCommand, Select, SetFeaturesCommand};
pub use identify::{Cns, IdentifyCommand};
pub use log_page::{GetLogPageCommand, LogPage};

use crate::SubmissionEntry;
use crate::opcode::AdminOpcode;

/// Namespace identifier of all namespaces.
pub const NSID_ALL: u32 = 0xffff_ffff;

/// Keep Alive has no fields.
pub fn keep_alive() -> SubmissionEntry {
    AdminOpcode::KeepAlive.into()
}

/// Asynchronous Event Request has no fields; its completion carries an [`AsyncEvent`].
pub fn async_event_request() -> SubmissionEntry {
    AdminOpcode::AsyncEventRequest.into()
}
