//! Who is measured: a target, a host, and the arguments that are special about them.

use super::row::{Load, Rw};

/// One column of a row.
#[derive(Clone, Copy, Debug)]
pub struct Entrant {
    /// Its name; what follows a `+` is what is special about it.
    pub name: &'static str,
    /// The serving side.
    pub target: Target,
    /// The asking side.
    pub host: Host,
}

/// A serving program.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// The host's program needs none.
    None,
    /// `isolane serve` with further arguments, serving memory.
    Isolane(&'static str),
    /// The same with a reactor on the target's core and another on the host's.
    IsolaneOnBoth(&'static str),
    /// `isolane serve`, serving a file through the page cache, or past it.
    IsolaneFile {
        /// Past the page cache.
        is_direct: bool,
    },
    /// SPDK's nvmf_tgt with this implementation of sockets.
    Spdk(Sockets),
    /// nbdkit's memory plugin.
    Nbdkit,
    /// An NBD export of qemu-storage-daemon.
    QemuNbd,
    /// The iSCSI target tgtd.
    Tgt,
}

/// An asking program.
#[derive(Clone, Copy, Debug)]
pub enum Host {
    /// The floor, both sides of it, with further arguments.
    Floor(&'static str),
    /// `isolane bench` with further arguments.
    Isolane(&'static str),
    /// The same, begun well before, and with the processor time of the target.
    Settled(&'static str),
    /// `isolane bench` with a thread on either core that share a volume, whose lanes are placed there.
    IsolaneOnBoth(Lanes),
    /// SPDK's perf with this implementation of sockets and further arguments.
    Spdk(Sockets, &'static str),
    /// The plain host of this crate, with further arguments.
    Capsules(&'static str),
    /// fio's nbd engine.
    FioNbd,
    /// fio's io_uring engine on the file itself.
    FioFile {
        /// Past the page cache.
        is_direct: bool,
    },
    /// libiscsi's iscsi-perf.
    IscsiPerf,
    /// Connections that do nothing, looked at after so many seconds.
    Idle(u64),
}

/// Where the lanes are of a volume that threads on both cores share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lanes {
    /// With whichever thread waits.
    Anywhere,
    /// On the target's core.
    OnOne,
    /// On either core.
    OnEach,
}

/// SPDK's implementations of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// epoll and `writev`.
    Posix,
    /// io_uring.
    Uring,
}

impl Sockets {
    /// SPDK's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Sockets::Posix => "posix",
            Sockets::Uring => "uring",
        }
    }
}

impl Entrant {
    /// The name without what is special: `isolane` for `isolane+digests`.
    pub fn peer(&self) -> &'static str {
        self.name.split('+').next().unwrap_or(self.name)
    }

    /// Whether its programs can carry this load at all.
    pub fn can_carry(&self, load: &Load) -> bool {
        match self.host {
            Host::Floor(_) => load.floor_work().is_some(),
            Host::IscsiPerf => load.rw == Rw::Read && load.connections == 1,
            Host::Capsules(_) => load.rw == Rw::Read,
            _ => true,
        }
    }
}

/// Bare TCP.
pub const FLOOR: Entrant = entrant("floor", Target::None, Host::Floor(""));
/// Isolane on both sides.
pub const ISOLANE: Entrant = entrant("isolane", Target::Isolane(POLL), Host::Isolane(POLL));
/// SPDK on both sides.
pub const SPDK: Entrant = entrant("spdk", Target::Spdk(Sockets::Posix), Host::Spdk(Sockets::Posix, ""));
/// SPDK on both sides with its io_uring sockets.
pub const SPDK_URING: Entrant =
    entrant("spdk-uring", Target::Spdk(Sockets::Uring), Host::Spdk(Sockets::Uring, ""));
/// Isolane's target under SPDK's host.
pub const SPDK_HOST: Entrant = entrant("spdk-host", Target::Isolane(POLL), Host::Spdk(Sockets::Posix, ""));
/// SPDK's target under Isolane's host.
pub const SPDK_TARGET: Entrant = entrant("spdk-target", Target::Spdk(Sockets::Posix), Host::Isolane(POLL));
/// nbdkit's memory under fio.
pub const NBDKIT: Entrant = entrant("nbdkit", Target::Nbdkit, Host::FioNbd);
/// qemu-storage-daemon under fio.
pub const QEMU_NBD: Entrant = entrant("qemu-nbd", Target::QemuNbd, Host::FioNbd);
/// tgtd under iscsi-perf.
pub const TGT: Entrant = entrant("tgt", Target::Tgt, Host::IscsiPerf);

/// Both sides spin.
pub const POLL: &str = "--mode poll";

/// An entrant.
pub const fn entrant(name: &'static str, target: Target, host: Host) -> Entrant {
    Entrant { name, target, host }
}

/// Isolane on both sides with these arguments of `serve` and of `bench`.
pub const fn isolane(name: &'static str, serve: &'static str, bench: &'static str) -> Entrant {
    entrant(name, Target::Isolane(serve), Host::Isolane(bench))
}
