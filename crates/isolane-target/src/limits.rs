//! Limits of connections, for the target, each subsystem, and each host. [Memory](crate::memory_limits) is limited for each
//! command.
//!
//! A Connect above a limit is refused, and the host tries again later. Connections that have ended do not count, also
//! while their commands are at volumes, so that a host can reconnect immediately. Commands are limited by the sizes of
//! queues, so no command has to be counted. Discovery controllers count for the target only, and a queue whose host must
//! authenticate counts for its host once that has done so.

use std::collections::HashMap;
use std::fmt;

use isolane_proto::subsystem::{Host, SubsystemId, parse_host};
use isolane_wire::fabrics::{ConnectCommand, ConnectData};
use isolane_wire::{Nqn, SubmissionEntry};

/// Limits of connections. A change ends no connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetLimits {
    /// Of the target.
    pub target: ConnectionLimits,
    /// Of each subsystem, by its name.
    pub subsystems: HashMap<Nqn, ConnectionLimits>,
    /// Of each host in all subsystems together, by its name.
    pub hosts: HashMap<Nqn, ConnectionLimits>,
}

/// Limits of the connections of one object; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum number of connected queues.
    pub connections: Option<usize>,
    /// Maximum number of associations.
    pub associations: Option<usize>,
    /// Maximum number of commands in flight: the sum of the sizes of all queues.
    pub commands: Option<usize>,
    /// Maximum memory that commands of I/O queues hold for their data, in bytes; 4 MiB and more let commands of all
    /// lengths run at the same time. Above it, commands wait. Each queue can also hold the data of one command that has
    /// come with it, and commands that were answered while their volume holds them do not count.
    pub memory: Option<usize>,
}

/// Object of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitScope {
    /// The target.
    Target,
    /// A subsystem.
    Subsystem,
    /// A host.
    Host,
}

/// Number that a limit bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitKind {
    /// Connected queues.
    Connections,
    /// Associations.
    Associations,
    /// Commands in flight.
    Commands,
    /// Memory for data in flight.
    Memory,
}

impl LimitScope {
    /// All objects.
    pub const ALL: [LimitScope; 3] = [LimitScope::Target, LimitScope::Subsystem, LimitScope::Host];

    /// Returns the name in text.
    pub const fn name(self) -> &'static str {
        match self {
            LimitScope::Target => "target",
            LimitScope::Subsystem => "subsystem",
            LimitScope::Host => "host",
        }
    }
}

impl LimitKind {
    /// All numbers.
    pub const ALL: [LimitKind; 4] =
        [LimitKind::Connections, LimitKind::Associations, LimitKind::Commands, LimitKind::Memory];

    /// Returns the name in text.
    pub const fn name(self) -> &'static str {
        match self {
            LimitKind::Connections => "connections",
            LimitKind::Associations => "associations",
            LimitKind::Commands => "commands",
            LimitKind::Memory => "memory",
        }
    }
}

/// A limit that a Connect, or a command, would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitReached {
    pub scope: LimitScope,
    pub kind: LimitKind,
    pub used: usize,
    pub max: usize,
}

impl LimitReached {
    /// Returns the index in a list of the limits of all scopes.
    pub(crate) fn index(self) -> usize {
        limit_index(self.scope, self.kind)
    }
}

/// Number of limits of all scopes.
pub(crate) const LIMIT_COUNT: usize = LimitScope::ALL.len() * LimitKind::ALL.len();

/// Returns all limits.
pub(crate) fn all_limits() -> impl Iterator<Item = (LimitScope, LimitKind)> {
    LimitScope::ALL.into_iter().flat_map(|scope| LimitKind::ALL.map(|kind| (scope, kind)))
}

/// Returns the index of a limit in a list of all.
pub(crate) fn limit_index(scope: LimitScope, kind: LimitKind) -> usize {
    scope as usize * LimitKind::ALL.len() + kind as usize
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimitReached { scope, kind, used, max } = self;
        let object = match scope {
            LimitScope::Target => "the target",
            LimitScope::Subsystem => "its subsystem",
            LimitScope::Host => "the host",
        };
        if *kind == LimitKind::Memory {
            return write!(f, "{object} uses {used} of at most {max} bytes; raise limits.memory of {object}");
        }
        let kind = kind.name();
        write!(f, "{object} has {used} of at most {max} {kind}; raise limits.{kind} of {object}")
    }
}

/// One connected queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueInUse<'a> {
    pub subsystem: SubsystemId,
    pub host: &'a Host,
    pub entries: usize,
    /// Its host has proven its identity, or need not.
    pub proven: bool,
}

/// A Connect, as far as limits are concerned.
struct Request {
    subsystem: Nqn,
    host: Host,
    is_admin: bool,
    entries: usize,
}

impl Request {
    /// Returns `None` for a Connect that the port refuses.
    fn parse(entry: &SubmissionEntry, data: &[u8]) -> Option<Request> {
        let command = ConnectCommand::parse(entry);
        Some(Request {
            subsystem: ConnectData::decode_prefix(data)?.subnqn.parse().ok()?,
            host: parse_host(data)?,
            is_admin: command.qid == 0,
            entries: usize::from(command.sqsize) + 1,
        })
    }
}

/// Sums of connected queues.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    connections: usize,
    associations: usize,
    commands: usize,
}

impl ConnectionLimits {
    /// Returns the first limit that one more queue would exceed, with its present use.
    fn find_reached(&self, used: Usage, is_admin: bool, entries: usize) -> Option<(LimitKind, usize, usize)> {
        let checks = [
            (LimitKind::Connections, self.connections, used.connections, 1),
            (LimitKind::Associations, self.associations, used.associations, usize::from(is_admin)),
            (LimitKind::Commands, self.commands, used.commands, entries),
        ];
        checks.into_iter().find_map(|(kind, max, used, more)| {
            let max = max.filter(|max| more > 0 && used.saturating_add(more) > *max)?;
            Some((kind, used, max))
        })
    }
}

impl TargetLimits {
    /// Checks whether one more queue is within all limits. `find` returns a subsystem; the associations are those
    /// with connected queues.
    pub(crate) fn check<'a, Q: Iterator<Item = QueueInUse<'a>>>(
        &self,
        (entry, data): (&SubmissionEntry, &[u8]),
        find: impl FnOnce(&Nqn) -> Option<SubsystemId>,
        associations: impl Iterator<Item = Q> + Clone,
    ) -> Result<(), LimitReached> {
        if *self == TargetLimits::default() {
            return Ok(());
        }
        let Some(request) = Request::parse(entry, data) else { return Ok(()) };
        let Some(subsystem) = find(&request.subsystem) else { return Ok(()) };
        let none = ConnectionLimits::default();
        let is_storage = !subsystem.is_discovery();
        let of_subsystem = self.subsystems.get(&request.subsystem).filter(|_| is_storage);
        let of_host = request.host.nqn.and_then(|nqn| self.hosts.get(&nqn)).filter(|_| is_storage);
        for scope in LimitScope::ALL {
            let limits = match scope {
                LimitScope::Target => self.target,
                LimitScope::Subsystem => of_subsystem.copied().unwrap_or_default(),
                LimitScope::Host => of_host.copied().unwrap_or_default(),
            };
            if (ConnectionLimits { memory: None, ..limits }) == none {
                continue;
            }
            let counts = |queue: &QueueInUse<'_>| match scope {
                LimitScope::Target => true,
                LimitScope::Subsystem => queue.subsystem == subsystem,
                LimitScope::Host => is_of(queue, &request.host),
            };
            let used = usage(associations.clone(), counts);
            if let Some((kind, used, max)) = limits.find_reached(used, request.is_admin, request.entries) {
                return Err(LimitReached { scope, kind, used, max });
            }
        }
        Ok(())
    }

    /// Checks whether one more queue of a host, which has proven its identity, is within the limits of that host.
    pub(crate) fn check_host<'a, Q: Iterator<Item = QueueInUse<'a>>>(
        &self,
        (subsystem, host): (SubsystemId, &Host),
        is_admin: bool,
        entries: usize,
        associations: impl Iterator<Item = Q>,
    ) -> Result<(), LimitReached> {
        let limits = host.nqn.and_then(|nqn| self.hosts.get(&nqn)).filter(|_| !subsystem.is_discovery());
        let Some(limits) = limits else { return Ok(()) };
        let used = usage(associations, |queue| is_of(queue, host));
        let reached = limits.find_reached(used, is_admin, entries);
        reached.map_or(Ok(()), |(kind, used, max)| {
            Err(LimitReached { scope: LimitScope::Host, kind, used, max })
        })
    }
}

/// Whether a queue counts for this host. Without a proof, anyone can have named it.
fn is_of(queue: &QueueInUse<'_>, host: &Host) -> bool {
    queue.proven && !queue.subsystem.is_discovery() && queue.host.nqn == host.nqn
}

fn usage<'a, Q: Iterator<Item = QueueInUse<'a>>>(
    associations: impl Iterator<Item = Q>,
    counts: impl Fn(&QueueInUse<'a>) -> bool,
) -> Usage {
    let mut sum = Usage::default();
    for queues in associations {
        let before = sum.connections;
        for queue in queues.filter(&counts) {
            sum.connections += 1;
            sum.commands += queue.entries;
        }
        sum.associations += usize::from(sum.connections > before);
    }
    sum
}
