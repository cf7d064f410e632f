//! Options of one measurement.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;

/// Measure a stream of messages over loopback, natively or through an isolated engine
#[derive(Clone, Debug, clap::Parser)]
pub struct Options {
    /// Work of the application
    #[arg(long, value_enum, default_value_t = Work::Transmit)]
    pub work: Work,
    /// Transport of the messages
    #[arg(long, value_enum, default_value_t = Via::Native)]
    pub via: Via,
    /// Message size in bytes: the size of one write or read of the application
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub size: u32,
    /// Seconds to measure, after a tenth of that to warm up
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Core of the application
    #[arg(long, default_value_t = 0)]
    pub app_core: usize,
    /// Core of the peer
    #[arg(long, default_value_t = 1)]
    pub peer_core: usize,
    /// Socket of the engine
    #[arg(long, required_if_eq("via", "engine"))]
    pub socket: Option<PathBuf>,
    /// Process of the engine's supervisor; the processor time of both is counted
    #[arg(long, required_if_eq("via", "engine"))]
    pub supervisor: Option<u32>,
}

/// Work of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Write messages as fast as possible
    Transmit,
    /// Read messages as fast as possible
    Receive,
    /// Write a message, spin until it returns, and write the next
    Echo,
    /// Write 20,000 messages per second alongside a computing thread on the same core
    Compute,
}

/// Transport of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// Calls on the application's socket
    Native,
    /// Calls through a writer that buffers 64 KiB
    Buffered,
    /// Calls without `TCP_NODELAY`, so that the kernel combines messages
    Nagle,
    /// Calls with `MSG_MORE`, so that the kernel combines messages
    More,
    /// An isolated engine
    Engine,
}
