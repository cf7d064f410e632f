//! What both ends of a connection share: cutting the byte stream into PDUs, placing payload, and what waits
//! to be sent.
//!
//! It knows lengths, digests and the rules that hold for every PDU; what a PDU means is known by
//! [`target`](crate::target) and [`host`](crate::host).

mod body;
mod fault;
mod guess;
mod header;
mod inbox;
mod output;
mod phase;
mod plan;
mod progress;
mod receiver;
mod step;

pub use fault::{FatalError, Fault};
pub use plan::{RECEIVE_SLICES_MAX, ReceivePlan, TRANSMIT_SLICES_MAX, TransmitPlan};

pub(crate) use guess::Guess;
pub(crate) use header::Header;
pub(crate) use output::Output;
pub(crate) use phase::Phase;
pub(crate) use progress::{Debt, Debts, Progress};
pub(crate) use receiver::Receiver;
pub(crate) use step::Step;
