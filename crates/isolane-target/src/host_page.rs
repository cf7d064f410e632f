//! Log page C0h: the numbers of one host.
//!
//! A core sends a [`PageRequest`] for a command that waits in its lane; a side thread (`page_thread`) replies.
//!
//! Invariant: a page has the namespaces of one subsystem, and connections of the requesting host only, slow operations of these connections, and no number
//! that other hosts contribute to.

use std::sync::mpsc::SyncSender;
use std::time::{SystemTime, UNIX_EPOCH};

use isolane_observe::snapshot::{Connection, Numbers, Program, SlowOperation, Snapshot, VERSION, Volume};
use isolane_proto::subsystem::{Host, HostPage, SubsystemId};
use isolane_wire::log::HostStagesHeader;
use parking_lot::Mutex;
use serde::Serialize;

use crate::slab::LaneId;

/// Request for the page of a host.
#[derive(Debug)]
pub(crate) struct PageRequest {
    pub host: Host,
    pub subsystem: SubsystemId,
    /// Admin queue that waits for it, and the core that owns it.
    pub lane: LaneId,
    pub core: usize,
}

/// Sending end for all cores. It is empty before the start of the thread and after its end.
#[derive(Debug, Default)]
pub(crate) struct PageRequests(Mutex<Option<SyncSender<PageRequest>>>);

impl PageRequests {
    /// Sends a request. Returns `false` if too many pages wait, or the thread does not run.
    pub(crate) fn send(&self, request: PageRequest) -> bool {
        self.0.lock().as_ref().is_some_and(|sender| sender.try_send(request).is_ok())
    }

    /// Ends the thread after the page in progress.
    pub(crate) fn close(&self) {
        *self.0.lock() = None;
    }

    /// Sets the end of the thread.
    pub(crate) fn open(&self, sender: SyncSender<PageRequest>) {
        *self.0.lock() = Some(sender);
    }

    /// Returns `true` until [`PageRequests::close`].
    pub(crate) fn is_open(&self) -> bool {
        self.0.lock().is_some()
    }
}

/// Makes a page of connections of one host, and of all slow operations of the target.
pub(crate) fn to_page(
    program: Program,
    volumes: Vec<Volume>,
    mut connections: Vec<Connection>,
    slow: Vec<SlowOperation>,
) -> HostPage {
    let mut bytes_left = HostStagesHeader::MAX_TEXT - MAX_REST_BYTES - json_bytes(&volumes);
    let is_own = |slow: &SlowOperation| connections.iter().any(|own| own.id == slow.connection);
    // The member that completed last depends on other hosts, and is a part of a volume that has no name here.
    let slow = slow.into_iter().filter(is_own).map(|slow| SlowOperation { last_member: None, ..slow });
    let mut slow: Vec<_> = slow.collect();
    connections.sort_by_key(operations);
    let for_connections = bytes_left.saturating_sub(MIN_SLOW_BYTES);
    let (connections, connections_left_out) = newest(connections, for_connections);
    bytes_left -= json_bytes(&connections);
    slow.sort_by_key(|slow| slow.at_unix_us);
    let (slow, slow_left_out) = newest(slow, bytes_left);
    let at_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let numbers = Numbers { connections, ..Numbers::default() };
    let snapshot =
        Snapshot { version: VERSION, program, at_unix_ms, volumes, numbers, slow, ..Snapshot::default() };
    // Numbers and texts always have a representation.
    HostPage { text: serde_json::to_vec(&snapshot).unwrap_or_default(), connections_left_out, slow_left_out }
}

fn operations(connection: &Connection) -> u64 {
    connection.totals.iter().map(|(_, totals)| totals.count()).sum()
}

/// Returns the last items that fit into `max_bytes` of JSON, and the number of others.
fn newest<T: Serialize>(mut items: Vec<T>, max_bytes: usize) -> (Vec<T>, u32) {
    let mut bytes = 0;
    let fits = items.iter().rev().take_while(|item| {
        bytes += json_bytes(item) + 1;
        bytes <= max_bytes
    });
    let left_out = items.len() - fits.count();
    items.drain(..left_out);
    (items, left_out as u32)
}

fn json_bytes(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |json| json.len())
}

/// Limit for namespaces in a page.
pub(crate) const MAX_VOLUMES: usize = 256;
/// Size of all parts of a page except volumes, connections, and slow operations.
const MAX_REST_BYTES: usize = 2048;
/// Part of a page that connections cannot use.
const MIN_SLOW_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use isolane_observe::histogram::{Histogram, Resolution};
    use isolane_observe::stage::{Operation, Side, SizeClass, Stage};

    use super::*;

    fn connection(id: u64) -> Connection {
        let mut totals = Histogram::new(Resolution::Four);
        (0..64).for_each(|shift| totals.record(1 << shift, id + 1));
        Connection {
            id,
            host: "h".repeat(223),
            totals: SizeClass::ALL.map(|size| (size, totals.clone())).to_vec(),
            stages_ns: Side::Target.stages().iter().map(|stage| (*stage, u64::MAX)).collect(),
            stage_max_ns: Side::Target.stages().iter().map(|stage| (*stage, u64::MAX)).collect(),
            peer_times: Some(totals),
            ..Connection::default()
        }
    }

    fn slow(connection: u64, at_unix_us: u64) -> SlowOperation {
        SlowOperation {
            side: Side::Target,
            at_unix_us,
            volume: 0,
            operation: Operation::Read,
            bytes: 4096,
            lba: u64::MAX,
            core: 0,
            connection,
            cid: 1,
            depth: 1,
            total_ns: u64::MAX,
            stages: vec![(Stage::Device, u64::MAX)],
            last_member: Some(7),
        }
    }

    fn text_of(page: &HostPage) -> Snapshot {
        assert!(page.text.len() <= HostStagesHeader::MAX_TEXT, "{}", page.text.len());
        serde_json::from_slice(&page.text).expect("a snapshot")
    }

    #[test]
    fn page_has_operations_of_own_connections() {
        let all = vec![slow(2, 5), slow(1, 4), slow(3, 3), slow(0, 2), slow(2, 1)];
        let page = to_page(Program::default(), Vec::new(), vec![connection(2), connection(3)], all);
        let snapshot = text_of(&page);
        assert_eq!(snapshot.slow.iter().map(|slow| slow.at_unix_us).collect::<Vec<_>>(), [1, 3, 5]);
        assert!(snapshot.slow.iter().all(|slow| slow.last_member.is_none()));
        assert_eq!((page.connections_left_out, page.slow_left_out), (0, 0));
    }

    #[test]
    fn page_keeps_its_size() {
        let volume = |id| Volume { id, nsid: Some(u32::MAX), bytes: u64::MAX, ..Volume::default() };
        let volumes: Vec<_> = (0..MAX_VOLUMES as u32).map(volume).collect();
        let connections = (0..500).map(connection).collect();
        let slow = (0..5000).map(|at| slow(499, at)).collect();
        let page = to_page(Program::default(), volumes, connections, slow);
        let snapshot = text_of(&page);
        let [kept, slow] = [snapshot.numbers.connections.len(), snapshot.slow.len()];
        assert!(kept > 10 && slow > 100, "{kept} {slow}");
        assert_eq!((page.connections_left_out, page.slow_left_out), (500 - kept as u32, 5000 - slow as u32));
        assert_eq!(snapshot.slow.last().map(|slow| slow.at_unix_us), Some(4999), "the newest");
        assert_eq!(snapshot.numbers.connections.last().map(|at| at.id), Some(499), "the busiest");
    }
}
