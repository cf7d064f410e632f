//! What the caller chooses: how many lanes, how deep, with digests or without, and how long to try.
//!
//! Options are wishes. What both sides agreed on is in [`Negotiated`](crate::Negotiated). Every field has a
//! default that works; a wish that the target cannot meet is an error with the limit, never silently less.
//! Only lanes for reads and for polling may be fewer, and a log line says so.

use std::time::Duration;

pub use isolane_reactor::{IoChoice, Mode, SocketOptions};
use isolane_wire::Nqn;
use uuid::Uuid;

use crate::classes::Classes;
use crate::cores::Cores;
use crate::identity;
use crate::uri::Via;

/// How to connect and how to behave afterwards.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of this host; targets allow hosts by it.
    pub host_nqn: Nqn,
    /// Identity of this machine.
    pub host_id: Uuid,
    /// I/O connections of the default [`Class`](crate::Class): for everything, but for what a class of its
    /// own is for.
    pub lanes: usize,
    /// I/O connections for reads alone. Where the controller grants fewer than were asked for altogether,
    /// `poll_lanes` shrink first, then these; `lanes` never do.
    pub read_lanes: usize,
    /// I/O connections for requests that ask for [`Class::Poll`](crate::Class::Poll).
    pub poll_lanes: usize,
    /// The cores that a volume's lanes are placed on (H3); none: the URI's. Each has a thread of the volume,
    /// pinned to it, with an association of its own. The lanes of each class are dealt out over them, from
    /// the first core upward; a core that gets none is not used. See
    /// [`Volume::connect`](crate::Volume::connect).
    pub cores: Cores,
    /// Whether requests go through an isolated engine; none: as the URI says, or not. Its lanes are the
    /// engine's, and shared with all who open the same volume with the same options. What is said here about
    /// threads and waiting holds for this side alone; requests are not held back ([`Options::hold`]), and
    /// cores cannot be chosen.
    pub via: Option<Via>,
    /// Commands in flight on a lane; the target's queue must have one entry more.
    pub depth: u16,
    /// CRC32C over every header.
    pub header_digest: bool,
    /// CRC32C over all data.
    pub data_digest: bool,
    /// How a turn waits.
    pub mode: Mode,
    /// How long an adaptive turn spins before it sleeps.
    pub spin: Duration,
    /// What a sleeping turn sleeps in.
    pub io: IoChoice,
    /// Keep-alive timeout told to the target, in whole milliseconds; zero: none.
    pub keep_alive: Duration,
    /// How long one attempt to connect may take, all handshakes included.
    pub connect_timeout: Duration,
    /// A command without a response for this long means that the connection is dead.
    pub command_timeout: Duration,
    /// The most data of one command, in bytes; the target's MDTS may lower it. A power of two, 4 KiB at
    /// least.
    pub transfer_bytes_max: usize,
    /// Requests that may be outstanding in the client, over all lanes; of a volume with cores on each core.
    pub requests_max: usize,
    /// What happens when the connection breaks.
    pub reconnect: Reconnect,
    /// Whether the first flush succeeds after a loss of acknowledged writes that no flush had covered, where the
    /// target does not report whether it lost them; none: the URI's, or [`FlushAfterLoss::Trust`].
    pub flush_after_loss: Option<FlushAfterLoss>,
    /// Options of every connection's socket.
    pub socket: SocketOptions,
    /// A volume's callers that wait turn the client themselves while nobody else does, instead of handing
    /// over to the volume's thread. Such a volume sleeps in epoll; with [`IoChoice::Uring`] its thread does
    /// everything, as without this.
    pub inline: bool,
    /// A volume's requests are taken and sent together. Without, each wakes the volume's thread and is sent
    /// by itself: there to be measured against.
    pub batching: bool,
    /// Hold requests back for a moment while others are in flight, so that more go out in one send; none:
    /// send at every turn.
    pub hold: Option<Hold>,
}

/// How much ends a hold; the default is what i10 published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// So many requests,
    pub requests: usize,
    /// so many bytes of write data,
    pub bytes: usize,
    /// or so much time.
    pub time: Duration,
}

impl Default for Hold {
    fn default() -> Hold {
        Hold { requests: 16, bytes: 64 * 1024, time: Duration::from_micros(50) }
    }
}

/// What happens when the connection breaks.
#[derive(Clone, Debug)]
pub struct Reconnect {
    /// How long to keep trying; none: for ever; zero: not at all.
    pub give_up_after: Option<Duration>,
    /// Pause before the second attempt; the first is at once. It doubles with each.
    pub delay_min: Duration,
    /// The longest pause.
    pub delay_max: Duration,
    /// What happens to writes that the target may or may not have got.
    pub writes: WriteReplay,
    /// How long the target takes at most to end the commands of an association after its keep-alive timeout,
    /// where the controller reports no Command Quiesce Time (CQT 0) or a shorter one; none: not known. If
    /// neither is known, no timeout proves that a lost write has ended (see [`fence`](crate::fence)), and
    /// [`WriteReplay::AfterTimeout`] is refused at connect.
    pub quiesce: Option<Duration>,
}

/// What happens to writes whose fate is unknown after a connection broke. See [`fence`](crate::fence) for the
/// rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteReplay {
    /// Repeated as soon as the old association is known dead: the target says that its controller is gone, or
    /// the keep-alive timeout has passed and the target does not say that its controller is alive.
    WhenGone,
    /// Repeated only after the keep-alive timeout: where one address leads to several servers, the answer of
    /// one says nothing about the other. Needs a controller that reports a Command Quiesce Time, or
    /// [`Reconnect::quiesce`].
    AfterTimeout,
    /// Never repeated: they fail, and the caller decides.
    Never,
}

/// What becomes of the first flush after an association was lost that had acknowledged writes which no flush had
/// covered. Only where the target does not report a [`Generation`](crate::Generation): with one, the flush fails
/// exactly if the writes are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushAfterLoss {
    /// It ends as the target says, as with Linux: if the target lost its cache, a success is wrong.
    #[default]
    Trust,
    /// It fails with [`RequestError::WritesLost`](crate::RequestError::WritesLost), also if the target lost
    /// nothing.
    Fail,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            host_nqn: identity::host_nqn(),
            host_id: identity::host_id(),
            lanes: 1,
            read_lanes: 0,
            poll_lanes: 0,
            cores: Cores::default(),
            via: None,
            depth: 64,
            header_digest: false,
            data_digest: false,
            mode: Mode::Adaptive,
            spin: Duration::from_micros(50),
            io: IoChoice::Auto,
            keep_alive: Duration::from_secs(15),
            connect_timeout: Duration::from_secs(10),
            command_timeout: Duration::from_secs(30),
            transfer_bytes_max: 1 << 20,
            requests_max: 4096,
            reconnect: Reconnect::default(),
            flush_after_loss: None,
            socket: SocketOptions::default(),
            inline: true,
            batching: true,
            hold: None,
        }
    }
}

impl Options {
    /// The lanes asked for, by class.
    pub fn classes(&self) -> Classes {
        Classes { default: self.lanes, read: self.read_lanes, poll: self.poll_lanes }
    }
}

impl Default for Reconnect {
    fn default() -> Reconnect {
        Reconnect {
            give_up_after: Some(Duration::from_secs(600)),
            delay_min: Duration::from_millis(50),
            delay_max: Duration::from_secs(5),
            writes: WriteReplay::WhenGone,
            quiesce: None,
        }
    }
}

impl Reconnect {
    /// No second attempt: the first loss ends the client.
    pub fn never() -> Reconnect {
        Reconnect { give_up_after: Some(Duration::ZERO), ..Reconnect::default() }
    }

    /// How long commands may take to end after the keep-alive timeout of a controller that reports
    /// `reported` (zero: nothing); `None` if not known.
    pub(crate) fn quiesce_time(&self, reported: Duration) -> Option<Duration> {
        let reported = Some(reported).filter(|reported| !reported.is_zero());
        reported.max(self.quiesce)
    }

    /// The pause before attempt number `attempt`, counted from 0, with up to a quarter taken off at random so
    /// that many hosts of one target do not come back in step.
    pub(crate) fn pause(&self, attempt: u32) -> Duration {
        if attempt == 0 {
            return Duration::ZERO;
        }
        let doubled = self.delay_min.saturating_mul(1 << (attempt - 1).min(20));
        doubled.min(self.delay_max).mul_f64(1.0 - fastrand::f64() / 4.0)
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
    fn pauses_start_at_nothing_and_grow_up_to_the_longest() {
        let reconnect = Reconnect::default();
        assert_eq!(reconnect.pause(0), Duration::ZERO);
        assert!(reconnect.pause(1) <= reconnect.delay_min);
        assert!(reconnect.pause(2) > reconnect.delay_min);
        for attempt in [20, 1000, u32::MAX] {
            assert!(reconnect.pause(attempt) <= reconnect.delay_max);
            assert!(reconnect.pause(attempt) >= reconnect.delay_max.mul_f64(0.7));
        }
    }
}
