//! The rule that finds slow members of a group of devices.
//!
//! [`compare()`] compares quantiles of one window with the median of the other members. [`Detector`] applies it to
//! every window, and requires persistence. [`GroupDetector`] makes the windows from the latencies of each second. All
//! take plain data, and read no clock.
//!
//! Invariant: fewer than half of the members of a window are outliers.

pub mod compare;
pub mod detector;
pub mod windows;

pub use self::compare::{Criterion, Outlier, compare};
pub use self::detector::{Detector, Level, MemberWindow, Reason, Status};
pub use self::windows::{GroupDetector, MemberSecond};
