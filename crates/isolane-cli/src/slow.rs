//! `isolane slow`: the slow operations of a running program.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use isolane_inspect::source::Parts;
use isolane_inspect::text::{duration, time_of_day};
use isolane_observe::snapshot::{Connection, SlowOperation, Snapshot, Volume};

use crate::failure::Failure;
use crate::output;
use crate::source_args::SourceArgs;
use crate::units::show_bytes;

/// List the slow operations of a running program
///
/// Each core keeps at least the 4 slowest operations of every second for some minutes.
/// A line has the time of completion (UTC), the total, the operation, its volume, and its
/// first block. Then it has the stages that took the most time, the host with the queue
/// and command ID, the commands of that queue in flight at the arrival, and the core. An
/// operation of a host has the controller instead of the host. An operation of an engine
/// has no queue, and the name of its volume contains the session.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Print operations as they become known, until a signal
    #[arg(short, long, conflicts_with = "from")]
    follow: bool,
    /// Print each operation as one line of JSON
    #[arg(long)]
    json: bool,
}

/// Interval of reads with --follow. A core publishes its operations once per second.
const INTERVAL: Duration = Duration::from_secs(1);
/// Stages in a line.
const MAX_STAGES: usize = 3;
/// Time by which the operations of one core can be published later than on another core, in microseconds.
const LATE_US: u64 = 3_000_000;

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let source = args.source.source()?;
    let mut seen: BTreeMap<Key, ()> = BTreeMap::new();
    let mut result = Ok(());
    let polled = source.poll(Parts::Now, INTERVAL, |snapshot| {
        let names = Names::new(&snapshot);
        let latest = snapshot.slow.iter().map(|slow| slow.at_unix_us).max().unwrap_or(0);
        let new = snapshot.slow.iter().filter(|slow| seen.insert(key(slow), ()).is_none());
        let text: Result<String, Failure> = new.map(|slow| names.line(slow, args.json)).collect();
        let oldest = snapshot.slow.iter().map(|slow| slow.at_unix_us).min().unwrap_or(0);
        seen.retain(|(at, ..), ()| *at >= oldest.min(latest.saturating_sub(LATE_US)));
        result = text.and_then(|text| output::write_stdout(text.as_bytes()));
        let goes_on = args.follow && result.is_ok() && !output::is_closed();
        if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    polled.map_err(Failure::from_error)?;
    result
}

/// Time, core, connection, and command ID of an operation.
type Key = (u64, u32, u64, u16);

fn key(slow: &SlowOperation) -> Key {
    (slow.at_unix_us, slow.core, slow.connection, slow.cid)
}

/// Names of the parts of a snapshot.
struct Names<'a> {
    volumes: BTreeMap<u32, &'a Volume>,
    connections: BTreeMap<u64, &'a Connection>,
}

impl<'a> Names<'a> {
    fn new(snapshot: &'a Snapshot) -> Names<'a> {
        Names {
            volumes: snapshot.volumes.iter().map(|volume| (volume.id, volume)).collect(),
            connections: snapshot.numbers.connections.iter().map(|at| (at.id, at)).collect(),
        }
    }

    fn volume(&self, id: u32) -> &str {
        self.volumes.get(&id).map_or("?", |volume| &volume.name)
    }

    fn line(&self, slow: &SlowOperation, as_json: bool) -> Result<String, Failure> {
        if !as_json {
            return Ok(self.text(slow));
        }
        let mut json = serde_json::to_value(slow).map_err(Failure::from_error)?;
        json["volume_name"] = self.volume(slow.volume).into();
        json["host"] = self.connections.get(&slow.connection).map(|at| at.host.clone()).into();
        Ok(format!("{json}\n"))
    }

    fn text(&self, slow: &SlowOperation) -> String {
        let mut stages = slow.stages.clone();
        stages.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        let stages = stages.iter().take(MAX_STAGES);
        let stages: Vec<_> =
            stages.map(|(stage, ns)| format!("{} {}", stage.name(), duration(*ns))).collect();
        let last = slow.last_member.map_or(String::new(), |id| format!(", last {}", self.volume(id)));
        format!(
            "{}.{:03} {:>7} {} {} {} lba {}: {}{last};{} core {}\n",
            time_of_day(slow.at_unix_us / 1000),
            slow.at_unix_us / 1000 % 1000,
            duration(slow.total_ns),
            slow.operation.name(),
            show_bytes(slow.bytes as f64),
            self.volume(slow.volume),
            slow.lba,
            stages.join(", "),
            self.connection(slow),
            slow.core,
        )
    }

    /// Returns the connection and the command, or nothing for an operation without a connection. The name of an
    /// engine's volume has the session; a host knows its controller.
    fn connection(&self, slow: &SlowOperation) -> String {
        if !slow.has_connection() {
            return String::new();
        }
        if let Some((controller, queue)) = slow.host_queue() {
            return format!(" controller {controller} queue {queue} cid {:#06x}", slow.cid);
        }
        let host = match self.connections.get(&slow.connection) {
            Some(at) => format!("{} queue {}", at.host, at.queue),
            None => String::from("a closed connection"),
        };
        format!(" {host} cid {:#06x} depth {}", slow.cid, slow.depth)
    }
}

#[cfg(test)]
mod tests {
    use isolane_observe::stage::{Operation, Side, Stage};

    use super::*;

    fn snapshot() -> (Snapshot, SlowOperation) {
        let slow = SlowOperation {
            side: Side::Target,
            at_unix_us: 3_723_004_000,
            volume: 2,
            operation: Operation::Write,
            bytes: 4096,
            lba: 77,
            core: 1,
            connection: 5,
            cid: 0x1f,
            depth: 32,
            total_ns: 21_400_000,
            stages: vec![
                (Stage::Batch, 1_000),
                (Stage::Queue, 2_000),
                (Stage::Device, 21_000_000),
                (Stage::Socket, 3_000),
            ],
            last_member: Some(3),
        };
        let volume = |id, name: &str| Volume { id, name: name.to_owned(), ..Volume::default() };
        let mut snapshot =
            Snapshot { volumes: vec![volume(2, "disk5"), volume(3, "disk6")], ..Snapshot::default() };
        let host = String::from("nqn.x");
        snapshot.numbers.connections = vec![Connection { id: 5, host, queue: 3, ..Connection::default() }];
        (snapshot, slow)
    }

    #[test]
    fn line_has_the_longest_stages() {
        let (snapshot, slow) = snapshot();
        let line = Names::new(&snapshot).line(&slow, false).unwrap();
        assert_eq!(
            line,
            "01:02:03.004   21 ms write 4.0 KiB disk5 lba 77: device 21 ms, socket 3.0 µs, queue 2.0 µs, last disk6; \
             nqn.x queue 3 cid 0x001f depth 32 core 1\n"
        );
    }

    #[test]
    fn json_names_volume_and_host() {
        let (snapshot, slow) = snapshot();
        let line = Names::new(&snapshot).line(&slow, true).unwrap();
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&json["volume_name"], &json["host"], &json["lba"]),
            (&"disk5".into(), &"nqn.x".into(), &77.into())
        );
    }

    #[test]
    fn closed_connections_have_no_host() {
        let (mut snapshot, slow) = snapshot();
        snapshot.numbers.connections.clear();
        assert!(Names::new(&snapshot).text(&slow).contains("a closed connection"));
    }

    #[test]
    fn names_controller_for_operations_of_hosts() {
        let (snapshot, slow) = snapshot();
        let connection = SlowOperation::host_connection(7, 2);
        let slow = SlowOperation { side: Side::Host, connection, last_member: None, ..slow };
        let line = Names::new(&snapshot).text(&slow);
        assert!(line.ends_with("; controller 7 queue 2 cid 0x001f core 1\n"), "{line}");
    }

    #[test]
    fn names_session_for_operations_of_engines() {
        let (mut snapshot, slow) = snapshot();
        snapshot.volumes[0].name = String::from("nvme+tcp://a (session 7)");
        let slow = SlowOperation { side: Side::Engine, connection: 0, last_member: None, ..slow };
        let line = Names::new(&snapshot).text(&slow);
        assert!(line.contains(" nvme+tcp://a (session 7) lba 77: "), "{line}");
        assert!(line.ends_with("queue 2.0 µs; core 1\n"), "{line}");
    }
}
