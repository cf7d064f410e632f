//! What a running target tells about its connections: asked of every core by a message, so that it costs the
//! data path nothing.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use isolane_wire::Nqn;

use crate::shared::{Message, Shared};

/// One connection, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// The host's end.
    pub peer: SocketAddr,
    /// The host's name, once it has connected its queue.
    pub host_nqn: Option<Nqn>,
    /// The queue, likewise; 0 is the admin queue.
    pub qid: Option<u16>,
    /// The reactor that owns it, counted from 0.
    pub reactor: usize,
    /// The core that this reactor is pinned to.
    pub core: Option<usize>,
    /// The core that its packets were last processed on.
    pub incoming_cpu: Option<usize>,
    /// Bytes received and sent.
    pub moved_bytes: u64,
    /// Bytes that the kernel has taken and never sent: what is queued now waits behind them.
    pub unsent_bytes: usize,
}

/// Asks all cores; one that does not answer in time is left out. In the order of peers.
pub(crate) fn ask(shared: &Shared, cores: &[usize]) -> Vec<ConnectionStatus> {
    let (sender, answers) = mpsc::channel();
    shared.post_to_all(|| Message::Describe(sender.clone()));
    drop(sender);
    let deadline = Instant::now() + REPLY_TIMEOUT;
    let mut all = Vec::new();
    while let Ok(status) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        all.push(ConnectionStatus { core: cores.get(status.reactor).copied(), ..status });
    }
    all.sort_by_key(|status| status.peer);
    all
}

/// A core answers in its next turn.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
