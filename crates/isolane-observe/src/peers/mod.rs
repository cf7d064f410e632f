//! The rule that finds slow members of a group of devices.
//!
//! [`compare()`] compares quantiles of one window with the median of the other members. It takes plain data, and reads
//! no clock.
//!
//! Invariant: fewer than half of the members of a window are outliers.

pub mod compare;

pub use self::compare::{Criterion, Outlier, Sample, compare};
