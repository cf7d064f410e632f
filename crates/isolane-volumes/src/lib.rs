//! Volumes that are made of other volumes, and volumes of other targets.
//!
//! | specification | volume |
//! |---|---|
//! | `mirror:A;B,bitmap=FILE` | two members with the same data |
//! | `stripe:SIZE:A;B;…` | members in turn, `SIZE` bytes each |
//! | `read-only:A` | rejects changes |
//! | `delay:5ms:A` | delays every request |
//! | `delay:200us-400us:A` | delays every request by a time between two bounds, each with the same probability |
//! | `delay:5ms:A,depth=4` | delays at most 4 requests at a time, so that others wait |
//! | `fault:100:A` | fails every 100th request |
//! | `stall:2s:A,every=60s` | completes no request for 2 s in every 60 s |
//! | `stall:20ms:A,one-in=200,seed=N` | stalls one request in 200, at random; the same ones for the same seed |
//! | `log:A` | logs every request at level info |
//! | `nvme+tcp://HOST:PORT/NQN?nsid=N` | namespace of another target |
//!
//! All filters but `read-only` accept `on=read`, `on=write`, or `on=flush`, for one kind of requests; and all
//! filters accept `from=30s,for=10s`, for a period after the volume was opened. Filters nest, and their delays add up.
//!
//! A member with options, or with members, is written in parentheses:
//! `stripe:64k:(a.img,size=1G);(read-only:b.img)`. The options `ro`, `nsid`, `uuid`, and
//! `group` apply to the whole volume.
//!
//! [`parse`] and [`open`] accept these specifications and all of [`isolane_volume::spec`]. To add a kind of volume,
//! write a file such as `delay.rs`, and add it to `STANDARD` in `kind.rs`. A program adds kinds of its own to [`Kinds`].
//!
//! Invariants, in addition to the invariants of [`isolane_volume`]:
//! * An error of a member is an error of the request, except that a mirror continues with its other member.
//! * A flush, and a write with `fua`, reach every member that they concern before they complete.
//! * The identity of a volume is the same after a restart if the identities of its members are.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod delay;
mod driver;
mod fault;
mod kind;
mod log;
mod mirror;
mod nested_volume;
mod parts;
mod read_only;
mod remote;
mod scope;
mod stall;
mod stripe;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use isolane_volume::spec::{SpecError, VolumeSpec};
use isolane_volume::{OpenError, Volume};

pub use kind::{Kind, Kinds};
pub use read_only::ReadOnly;
pub use remote::{JournalFile, remote_address};

/// Error number of an I/O error.
const EIO: i32 = 5;

/// Parses a specification of any volume of this crate or [`isolane_volume`]. A program with more kinds uses [`Kinds`].
///
/// # Errors
/// The part that is invalid.
pub fn parse(text: &str) -> Result<VolumeSpec, SpecError> {
    Kinds::default().parse(text)
}

/// Opens the volume specified by `spec`, and all members of it.
///
/// # Errors
/// The volume that cannot be opened.
pub fn open(spec: &VolumeSpec) -> Result<Arc<dyn Volume>, OpenError> {
    Kinds::default().open(spec)
}
