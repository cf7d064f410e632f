//! The numbers of a running target as one document.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use isolane_observe::snapshot::{Numbers, Program, SlowOperation, Snapshot, VERSION, Volume};
use isolane_observe::stage::Side;
use isolane_reactor::clock;
use isolane_volume::VolumeTree;
use isolane_volume::tree::{ARGUMENT, MirrorState};

use crate::counters::CoreCounters;
use crate::limits::{LimitKind, all_limits, limit_index};
use crate::namespace::Namespace;
use crate::observed::CoreCells;
use crate::shared::Shared;

/// Returns all numbers since the start of the target. Asks no core.
pub(crate) fn take(shared: &Shared, started_ns: u64) -> Snapshot {
    let now_ns = clock::now();
    let slow = slow(shared, unix_offset_ns(now_ns));
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut numbers = numbers(shared);
    let volumes = volumes(shared, &numbers);
    // Those of removed namespaces have no volume.
    let listed: HashSet<u32> = volumes.iter().map(|volume| volume.id).collect();
    numbers.series.retain(|series| listed.contains(&series.volume));
    Snapshot {
        version: VERSION,
        program: program(shared, now_ns.saturating_sub(started_ns)),
        at_unix_ms: since_1970.as_millis() as u64,
        volumes,
        numbers,
        slow,
        ..Snapshot::default()
    }
}

/// Returns the difference between the time since 1970 and the clock, in nanoseconds. The clock shows `now_ns`.
pub(crate) fn unix_offset_ns(now_ns: u64) -> i128 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_1970.as_nanos() as i128 - i128::from(now_ns)
}

/// Returns the slow operations of all cores, the oldest first.
pub(crate) fn slow(shared: &Shared, unix_offset_ns: i128) -> Vec<SlowOperation> {
    let of_core = |(core, cells): (u32, &Arc<CoreCells>)| {
        let records = cells.slow.copy().into_iter();
        records.map(move |record| record.to_operation(Side::Target, core, unix_offset_ns)).collect::<Vec<_>>()
    };
    let mut slow: Vec<_> = (0_u32..).zip(&shared.observed).flat_map(of_core).collect();
    slow.sort_by_key(|operation| operation.at_unix_us);
    slow
}

fn program(shared: &Shared, uptime_ns: u64) -> Program {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Program {
        name: String::from("serve"),
        version: String::from(env!("CARGO_PKG_VERSION")),
        pid: std::process::id(),
        uptime_ms: uptime_ns / 1_000_000,
        clock: clock::source().to_owned(),
        machine,
        limits: [
            ("pool".to_owned(), shared.pool_bytes as u64),
            ("busy-poll".to_owned(), shared.busy_poll_us.into()),
            ("scheduler-dynamic".to_owned(), shared.is_dynamic.into()),
        ]
        .into(),
    }
}

fn numbers(shared: &Shared) -> Numbers {
    let mut numbers = Numbers::default();
    for (index, cells) in shared.observed.iter().enumerate() {
        numbers.series.extend(cells.copy(index));
        numbers.cores.push(cells.describe(index));
    }
    numbers.connections = shared.connections.copy();
    let sum = |value: fn(&CoreCounters) -> u64| shared.counters.iter().map(|it| value(it)).sum();
    for (name, value) in [
        ("deferred-commands", sum(|core| core.deferred_commands.value())),
        ("memory-waits", sum(|core| core.memory_waits.value())),
        ("range-waits", sum(|core| core.range_waits.value())),
        ("flush-waits", sum(|core| core.flush_waits.value())),
        ("limit-waits", sum(|core| core.limit_waits.value())),
        ("qos-waits", sum(|core| core.qos_waits.value())),
        ("file-thread-waits", sum(|core| core.file_thread_waits.value())),
        ("digest-errors", sum(|core| core.digest_errors.value())),
        ("fatal-errors", sum(|core| core.fatal_errors.value())),
        ("received-bytes", sum(|core| core.received_bytes.value())),
        ("sent-bytes", sum(|core| core.sent_bytes.value())),
        ("connections-open", sum(|core| core.connections_open.value())),
        ("log-lines-lost", log::lost_lines()),
        ("observe-bytes", shared.observed.iter().map(|cells| cells.memory() as u64).sum()),
    ] {
        numbers.counters.insert(name.to_owned(), value);
    }
    for (scope, kind) in all_limits() {
        let refused = |core: &Arc<CoreCounters>| core.limits_reached[limit_index(scope, kind)].value();
        let refused: u64 = shared.counters.iter().map(refused).sum();
        if refused > 0 {
            let what = if kind == LimitKind::Memory { "waits" } else { "refused" };
            let name = format!("{what}-{}-{}", scope.name(), kind.name());
            numbers.counters.insert(name, refused);
        }
    }
    numbers
}

/// Returns all volumes: the namespaces in their order, then their members, then the others if they have numbers.
fn volumes(shared: &Shared, numbers: &Numbers) -> Vec<Volume> {
    let table = shared.namespaces();
    let trees: Vec<VolumeTree> = table.iter().map(|(_, it)| it.volume.tree()).collect();
    let describe = |((position, namespace), tree): ((usize, &Namespace), &VolumeTree)| {
        let oldest = shared.counters.iter().filter_map(|core| core.oldest_commands[position].age()).max();
        Volume {
            nsid: Some(namespace.nsid),
            bytes: namespace.geometry.blocks << namespace.geometry.block_shift,
            oldest_ms: oldest.map(|age| age.as_millis() as u64),
            ..describe(namespace.number, None, tree)
        }
    };
    let mut list: Vec<Volume> = table.iter().zip(&trees).map(describe).collect();
    for ((_, namespace), tree) in table.iter().zip(&trees) {
        let mut next = namespace.first_member;
        add_members(&mut list, namespace.number, &mut next, tree);
    }
    let others = shared.observed.first().map(|cells| cells.others() as u32);
    if numbers.series.iter().any(|series| Some(series.volume) == others) {
        list.push(Volume { id: others.unwrap_or_default(), name: "others".to_owned(), ..Volume::default() });
    }
    list
}

/// Adds the members of a tree, each followed by its own members.
fn add_members(list: &mut Vec<Volume>, parent: u32, next: &mut u32, tree: &VolumeTree) {
    for (at, member) in tree.members.iter().enumerate() {
        let id = *next;
        *next += 1;
        let background = state_of_member(tree, at);
        list.push(Volume { background, ..describe(id, Some(parent), member) });
        add_members(list, id, next, member);
    }
}

/// Lets reads avoid the member that has an ID in [`volumes`], or ends that. Returns `false` if no volume above it can.
pub(crate) fn avoid(shared: &Shared, id: usize, is_avoided: bool) -> bool {
    let table = shared.namespaces();
    let avoid = |(_, namespace): (usize, &Namespace)| {
        let mut next = namespace.first_member as usize;
        avoid_below(&*namespace.volume, &mut next, id, is_avoided)
    };
    table.iter().find_map(avoid).unwrap_or(false)
}

/// Returns whether the volume or one below it can, or `None` if the member is not below it. `next` is the ID of the next
/// member.
fn avoid_below(
    volume: &dyn isolane_volume::Volume,
    next: &mut usize,
    id: usize,
    is_avoided: bool,
) -> Option<bool> {
    volume.members().iter().enumerate().find_map(|(position, member)| {
        let is_this = *next == id;
        *next += 1;
        let below = if is_this { Some(false) } else { avoid_below(&**member, next, id, is_avoided) };
        below.map(|is_done| is_done || volume.avoid_member(position, is_avoided))
    })
}

fn describe(id: u32, parent: Option<u32>, tree: &VolumeTree) -> Volume {
    let parameters = tree.parameters.iter().map(|(key, value)| match key.as_str() {
        ARGUMENT => value.clone(),
        key => format!("{key}={value}"),
    });
    let parameters: Vec<String> = parameters.collect();
    Volume {
        id,
        parent,
        name: tree.name.clone(),
        kind: tree.kind.to_owned(),
        group: tree.group.clone(),
        path: tree.path.as_ref().map(|path| path.display().to_string()),
        parameters: (!parameters.is_empty()).then(|| parameters.join(",")),
        background: tree.mirror.and_then(state_of_mirror),
        ..Volume::default()
    }
}

fn state_of_mirror(state: MirrorState) -> Option<String> {
    match state {
        MirrorState::InSync => None,
        MirrorState::Copying { percent, .. } => Some(format!("copying {percent} %")),
        MirrorState::Degraded { .. } => Some("degraded".to_owned()),
        MirrorState::Failed => Some("failed".to_owned()),
    }
}

/// Returns the work that a mirror does on one member, or that it removed the member.
fn state_of_member(mirror: &VolumeTree, at: usize) -> Option<String> {
    let state = mirror.mirror?;
    match state {
        MirrorState::Copying { to, .. } if to == at => state_of_mirror(state),
        // The list has no member that could not be opened, so positions count only if it has both.
        MirrorState::Degraded { without } if without == at && mirror.members.len() > 1 => {
            Some("removed".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(state: MirrorState, members: usize) -> VolumeTree {
        let member = VolumeTree::new("member", "file");
        let members = vec![member; members];
        VolumeTree { mirror: Some(state), members, ..VolumeTree::new("mirror", "mirror") }
    }

    /// Returns the states of a mirror and its members.
    fn states(state: MirrorState, members: usize) -> Vec<Option<String>> {
        let tree = mirror(state, members);
        let mut list = vec![describe(0, None, &tree)];
        add_members(&mut list, 0, &mut 1, &tree);
        list.into_iter().map(|volume| volume.background).collect()
    }

    #[test]
    fn names_state_of_mirror_and_members() {
        let text = |text: &str| Some(text.to_owned());
        let copying = MirrorState::Copying { to: 1, percent: 40 };
        assert_eq!(states(MirrorState::InSync, 2), [None, None, None]);
        assert_eq!(states(copying, 2), [text("copying 40 %"), None, text("copying 40 %")]);
        assert_eq!(states(MirrorState::Failed, 2), [text("failed"), None, None]);
    }

    #[test]
    fn marks_removed_member_but_not_missing_one() {
        let text = |text: &str| Some(text.to_owned());
        let degraded = MirrorState::Degraded { without: 0 };
        assert_eq!(states(degraded, 2), [text("degraded"), text("removed"), None]);
        assert_eq!(states(degraded, 1), [text("degraded"), None], "the only member is the other one");
    }
}
