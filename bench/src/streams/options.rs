//! What to measure.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Which way messages go, and who does the work.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// What the application does
    #[arg(long, value_enum, default_value_t = Work::Transmit)]
    pub work: Work,
    /// Who does its network processing
    #[arg(long, value_enum, default_value_t = Via::Native)]
    pub via: Via,
    /// Bytes of a message: what one call of the application writes or reads
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
    /// Core of the engine
    #[arg(long, default_value_t = 1)]
    pub engine_core: usize,
    /// How the engine waits: poll, adaptive or sleep
    #[arg(long, default_value = "adaptive")]
    pub engine_mode: String,
    /// Take a lock that nobody else wants for every message
    #[arg(long)]
    pub lock: bool,
    /// Have the engine take a lock that nobody else wants at each look at a stream
    #[arg(long)]
    pub engine_lock: bool,
    /// Connections that the application transmits on in turn; other work has one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub connections: u16,
    /// The program whose `engine` is started
    #[arg(long, default_value = "isolane")]
    pub isolane: PathBuf,
}

/// What the application does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Writes messages as fast as they are taken
    Transmit,
    /// Reads messages as fast as they come
    Receive,
    /// Writes a message, spins until it is back, and writes the next
    Echo,
    /// Writes 20,000 messages a second, beside a thread on the same core that computes
    Compute,
}

/// Who does the network processing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// The application, by calls on its socket
    Native,
    /// The same through a writer that buffers 64 KiB
    Buffered,
    /// The same without `TCP_NODELAY`, so that the kernel combines messages
    Nagle,
    /// The same with `MSG_MORE`, which tells the kernel that more follows
    More,
    /// An isolated engine
    Engine,
}
