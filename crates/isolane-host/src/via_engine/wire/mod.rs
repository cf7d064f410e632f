//! Volume protocol between an application and an engine, on top of [`isolane_attach`].
//!
//! A volume is opened with [`OpenParams`], and the reply is a [`VolumeInfo`]. From then on, [`Submission`]s
//! and [`Outcome`]s travel in two rings of entries at the offsets that the application has chosen
//! ([`VolumeLayout`]). One submission is one NVMe command.
//!
//! Decoding checks the format only; the reader must check that the values make sense.

mod layout;
mod open_params;
mod outcome;
mod submission;
mod volume_info;

pub use layout::{MAX_ENTRIES, VolumeLayout};
pub(crate) use open_params::MAX_TRANSFER_BYTES;
pub use open_params::{OpenParams, OpenParamsError};
pub use outcome::Outcome;
pub use submission::{Operation, RANGE_BYTES, Submission, decode_range, encode_range};
pub use volume_info::VolumeInfo;
