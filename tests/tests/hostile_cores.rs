//! The same attacks on a target of two cores on epoll: connections of one host lie on different cores, and
//! what ends an association crosses between them.

#[path = "../../crates/isolane-target/tests/common/mod.rs"]
mod base;
#[path = "hostile/control.rs"]
mod control;
#[path = "hostile/crowd.rs"]
mod crowd;

/// What the attacks use, with another target.
mod common {
    use isolane_reactor::{IoChoice, Mode};
    use isolane_target::TargetConfig;

    pub use super::base::*;

    /// A target of memory volumes with two reactors on one core.
    pub fn config(volumes: &[&str]) -> TargetConfig {
        let (cores, mode, io) = (one_core_twice(), Mode::Sleep, IoChoice::Epoll);
        TargetConfig { cores, mode, io, ..super::base::config(volumes) }
    }
}
