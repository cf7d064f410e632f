//! The same attacks on a target with two reactors on epoll, which share the connections of a host.

#[path = "../../crates/isolane-target/tests/common/mod.rs"]
mod base;
#[path = "hostile/control.rs"]
mod control;
#[path = "hostile/many_hosts.rs"]
mod many_hosts;

/// Helpers of the attacks, with another target configuration.
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
