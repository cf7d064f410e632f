//! The atomics that [`grace`](crate::grace) stands on; its test of every order of events puts others here.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
