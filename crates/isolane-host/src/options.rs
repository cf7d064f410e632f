//! Options of a connection: lanes, depth, digests, timeouts, and reconnecting.
//!
//! Options are requests; [`Negotiated`](crate::Negotiated) has the result. Every field has a default that
//! works. A request that the target cannot meet is an error that names the limit, except that lanes for reads
//! and polling may be fewer, which is logged, and that the depth may be lower.

use std::path::PathBuf;
use std::time::Duration;

pub use isolane_reactor::{IoChoice, Mode, SocketOptions};
use isolane_wire::Nqn;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::codec::text;
use crate::cores::Cores;
use crate::identity;
use crate::lane_class::LaneCounts;

/// Options of a connection. Options with `#[serde(skip)]` are not sent to an engine.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default)]
pub struct Options {
    /// NQN of this host, by which targets allow hosts.
    #[serde(with = "text")]
    pub host_nqn: Nqn,
    /// Identity of this machine.
    pub host_id: Uuid,
    /// File with the key of this host, which proves its identity to targets that require it. Read for each
    /// connection. `None`: as the URI requests. Not with an engine.
    #[serde(skip)]
    pub key: Option<PathBuf>,
    /// File with the key of the target, which then must prove its identity. `None`: as the URI requests.
    #[serde(skip)]
    pub ctrl_key: Option<PathBuf>,
    /// Lanes of the default [`LaneClass`](crate::LaneClass): for all requests that no other class serves.
    ///
    /// A *lane* is one TCP connection and the core that owns it. In NVMe/TCP it carries exactly one queue pair;
    /// these are I/O lanes, in addition to the admin lane of each association.
    pub lanes: usize,
    /// Lanes for reads only. If the controller grants fewer queues than requested, `poll_lanes` shrink first, then
    /// these; `lanes` never shrink.
    pub read_lanes: usize,
    /// Lanes for requests of [`LaneClass::Poll`](crate::LaneClass::Poll).
    pub poll_lanes: usize,
    /// Cores for a volume's lanes (H3). Empty: the URI decides. Each core has a thread of the volume, pinned
    /// to it, with a separate association. The lanes of each class are distributed from the first core
    /// upward; a core without a lane is not used. See [`Volume::connect`](crate::Volume::connect).
    #[serde(skip)]
    pub cores: Cores,
    /// The isolated engine that requests go through. `None`: as the URI requests. The engine owns the lanes and
    /// shares them with all clients that open the same volume with the same options. Options about threads and
    /// waiting apply to this process only; requests are not coalesced ([`Options::coalesce`]), and cores cannot be
    /// chosen.
    #[serde(skip)]
    pub via: Option<Via>,
    /// Maximum number of commands in flight on a lane. The target's queue needs one more entry. A controller whose
    /// queues are smaller lowers it.
    pub depth: u16,
    /// Refuses a controller whose queues are too small for `depth`.
    pub exact_depth: bool,
    /// CRC32C over every header.
    pub header_digest: bool,
    /// CRC32C over all data.
    pub data_digest: bool,
    /// How a turn waits.
    #[serde(skip)]
    pub mode: Mode,
    /// How long an adaptive turn spins before it sleeps.
    #[serde(skip)]
    pub spin: Duration,
    /// The system interface that a sleeping turn waits in.
    #[serde(skip)]
    pub io: IoChoice,
    /// Keep-alive timeout sent to the target, in whole milliseconds. Zero: none.
    pub keep_alive: Duration,
    /// Timeout of one attempt to connect, including all handshakes.
    pub connect_timeout: Duration,
    /// A command without a response for this long means that the connection is dead.
    pub command_timeout: Duration,
    /// Maximum data of one command, in bytes; the target's MDTS may lower it. A power of two, at least 4 KiB.
    pub max_transfer_bytes: usize,
    /// Maximum number of outstanding requests of the client, over all lanes; with cores, on each core.
    #[serde(skip)]
    pub max_requests: usize,
    /// Behavior after the connection is lost.
    pub reconnect: Reconnect,
    /// Result of the first flush after acknowledged, unflushed writes may have been lost, if the target does not
    /// report whether it lost them. `None`: as the URI requests, or [`FlushAfterLoss::Trust`].
    pub flush_after_loss: Option<FlushAfterLoss>,
    /// Options of every connection's socket.
    #[serde(with = "text")]
    pub socket: SocketOptions,
    /// Lets waiting callers of a volume drive the client in their own threads while no other thread does. Such a
    /// volume sleeps in epoll. With [`IoChoice::Uring`], or without this option, the volume's thread does all work.
    #[serde(skip)]
    pub inline_submit: bool,
    /// Delays requests while others are in flight, so that more are sent together. `None`: every turn sends.
    #[serde(skip)]
    pub coalesce: Option<Coalesce>,
    /// Records latencies and their stages; see [`Volume::snapshot`](crate::Volume::snapshot).
    #[serde(skip)]
    pub observe: bool,
}

/// Limits of a coalescing delay; any of them ends it. The default is as published for i10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalesce {
    /// Number of requests.
    pub requests: usize,
    /// Write data, in bytes.
    pub bytes: usize,
    /// Time since the first request.
    pub time: Duration,
}

impl Default for Coalesce {
    fn default() -> Coalesce {
        Coalesce { requests: 16, bytes: 64 * 1024, time: Duration::from_micros(50) }
    }
}

/// Behavior after the connection is lost.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Reconnect {
    /// How long to keep trying, also for each request that the target does not answer. `None`: forever; zero: not at
    /// all.
    pub timeout: Option<Duration>,
    /// Delay before the second attempt; the first is immediate. It doubles with each attempt.
    pub min_delay: Duration,
    /// Maximum delay.
    pub max_delay: Duration,
    /// Handling of writes that the target may or may not have received.
    pub writes: WriteReplay,
    /// Maximum time that the target takes to end the commands of an association after its keep-alive timeout, for
    /// a controller that reports no Command Quiesce Time (CQT 0) or a shorter one. `None`: not known. If neither is
    /// known, no timeout proves that a lost write has ended (see [`fence`](crate::fence)), and
    /// [`WriteReplay::AfterTimeout`] is refused when connecting.
    pub quiesce: Option<Duration>,
}

/// Handling of writes whose fate is unknown after a connection was lost. See [`fence`](crate::fence) for the rule.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum WriteReplay {
    /// Repeats them as soon as the old association is known dead: the target reports that its controller is gone,
    /// or the keep-alive timeout has passed and the target does not report that its controller is alive.
    WhenGone,
    /// Repeats them only after the keep-alive timeout. For an address that leads to several servers, where the
    /// response of one proves nothing about another. Needs a controller that reports a Command Quiesce Time, or
    /// [`Reconnect::quiesce`].
    AfterTimeout,
    /// Fails them, and the caller decides.
    Never,
}

/// Result of the first flush after the loss of an association that had acknowledged, unflushed writes. Applies only
/// if the target does not report a [`Generation`](crate::Generation); with one, the flush fails exactly if the
/// writes are lost.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum FlushAfterLoss {
    /// The target's result, as with Linux. If the target lost its cache, a success is wrong.
    #[default]
    Trust,
    /// [`RequestError::WritesLost`](crate::RequestError::WritesLost), even if the target lost nothing.
    Fail,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            host_nqn: identity::host_nqn(),
            host_id: identity::host_id(),
            key: None,
            ctrl_key: None,
            lanes: 1,
            read_lanes: 0,
            poll_lanes: 0,
            cores: Cores::default(),
            via: None,
            depth: 64,
            exact_depth: false,
            header_digest: false,
            data_digest: false,
            mode: Mode::Adaptive,
            spin: Duration::from_micros(50),
            io: IoChoice::Auto,
            keep_alive: Duration::from_secs(15),
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(30),
            max_transfer_bytes: 1 << 20,
            max_requests: 4096,
            reconnect: Reconnect::default(),
            flush_after_loss: None,
            socket: SocketOptions::default(),
            inline_submit: true,
            coalesce: None,
            observe: true,
        }
    }
}

/// Process that connects to the volume, if not this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// The engine at the default path, which is started if it is not running.
    Engine,
    /// The engine that listens on this path.
    EngineAt(PathBuf),
}

impl Options {
    /// Lanes requested, by class.
    pub fn classes(&self) -> LaneCounts {
        LaneCounts { default: self.lanes, read: self.read_lanes, poll: self.poll_lanes }
    }

    /// Returns the keep-alive timeout (KATO) that the target gets: whole milliseconds, 0 if it has none.
    pub(crate) fn kato_ms(&self) -> u32 {
        u32::try_from(self.keep_alive.as_millis()).unwrap_or(u32::MAX)
    }
}

impl Default for Reconnect {
    fn default() -> Reconnect {
        Reconnect {
            timeout: Some(Duration::from_secs(600)),
            min_delay: Duration::from_millis(50),
            max_delay: Duration::from_secs(5),
            writes: WriteReplay::WhenGone,
            quiesce: None,
        }
    }
}

impl Reconnect {
    /// Disables reconnecting: the first loss closes the client.
    pub fn never() -> Reconnect {
        Reconnect { timeout: Some(Duration::ZERO), ..Reconnect::default() }
    }

    /// Returns the time that commands may take to end after the keep-alive timeout, for a controller that
    /// reports `reported` (zero: nothing). `None` if not known.
    pub(crate) fn quiesce_time(&self, reported: Duration) -> Option<Duration> {
        let reported = Some(reported).filter(|reported| !reported.is_zero());
        reported.max(self.quiesce)
    }

    /// Returns the delay before an attempt, counted from 0, reduced at random by up to a quarter so that many
    /// hosts of one target do not reconnect in step.
    pub(crate) fn pause(&self, attempt: u32) -> Duration {
        if attempt == 0 {
            return Duration::ZERO;
        }
        let doubled = self.min_delay.saturating_mul(1 << (attempt - 1).min(20));
        doubled.min(self.max_delay).mul_f64(1.0 - fastrand::f64() / 4.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiesce_time_is_unknown_unless_reported_or_given() {
        let ms = Duration::from_millis;
        let given = |quiesce| Reconnect { quiesce, ..Reconnect::default() };
        assert_eq!(given(None).quiesce_time(ms(0)), None);
        assert_eq!(given(None).quiesce_time(ms(5)), Some(ms(5)));
        assert_eq!(given(Some(ms(0))).quiesce_time(ms(0)), Some(ms(0)));
        assert_eq!(given(Some(ms(9))).quiesce_time(ms(5)), Some(ms(9)));
        assert_eq!(given(Some(ms(3))).quiesce_time(ms(5)), Some(ms(5)));
    }

    #[test]
    fn delays_start_at_zero_and_grow_to_maximum() {
        let reconnect = Reconnect::default();
        assert_eq!(reconnect.pause(0), Duration::ZERO);
        assert!(reconnect.pause(1) <= reconnect.min_delay);
        assert!(reconnect.pause(2) > reconnect.min_delay);
        for attempt in [20, 1000, u32::MAX] {
            assert!(reconnect.pause(attempt) <= reconnect.max_delay);
            assert!(reconnect.pause(attempt) >= reconnect.max_delay.mul_f64(0.7));
        }
    }
}
