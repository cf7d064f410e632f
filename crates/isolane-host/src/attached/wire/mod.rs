//! What an application and an engine agree on about volumes, beyond what
//! [`isolane_attach`] carries for both.
//!
//! A volume is opened with [`Details`] and answered with an [`Answer`]. From then on [`Submission`]s go one way
//! and [`Outcome`]s the other, each in a ring of entries whose place the application has chosen
//! ([`VolumePlace`]). One submission is one command of NVMe. Nothing here is believed: what decodes is well
//! formed, and whether it makes sense is for its reader to say.

mod answer;
mod details;
mod outcome;
mod place;
mod submission;

pub use answer::Answer;
pub(crate) use details::TRANSFER_BYTES_MAX;
pub use details::{Details, DetailsError};
pub use outcome::Outcome;
pub use place::{ENTRIES_MAX, VolumePlace};
pub use submission::{Operation, RANGE_BYTES, Submission, decode_range, encode_range};
