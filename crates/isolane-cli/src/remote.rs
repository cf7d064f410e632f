//! An Isolane target on another machine, read over NVMe as log page C0h.

use std::net::SocketAddr;
use std::time::Duration;

use isolane_host::{Options, TargetPage, Uri, read_host_page};
use isolane_inspect::source::{Remote, decode};
use isolane_inspect::text::shown_name;
use isolane_observe::snapshot::{Snapshot, Step};
use isolane_observe::verdict::NotSeen;

use crate::failure::{Context, Failure};

/// The target, and the identity of the host whose numbers it shows.
#[derive(Clone, Debug)]
pub struct RemoteTarget {
    uri: Uri,
    options: Options,
}

/// Numbers of a target for one host.
#[derive(Debug)]
pub enum Page {
    /// The numbers.
    Isolane {
        /// The document. It has no steps.
        snapshot: Box<Snapshot>,
        /// Parts of the page that did not fit.
        not_seen: Vec<NotSeen>,
    },
    /// The target is another program.
    Other {
        /// Its address.
        address: SocketAddr,
        /// Model of its controller.
        model: String,
    },
}

impl RemoteTarget {
    /// Describes a target.
    pub fn new(uri: Uri, options: Options) -> RemoteTarget {
        RemoteTarget { uri, options }
    }

    /// Returns the identity of the host, as text.
    pub fn identity(&self) -> String {
        format!("{} with ID {}", self.options.host_nqn.as_str(), self.options.host_id)
    }

    /// Reads the numbers since the start of the target.
    pub fn read(&self) -> Result<Page, Failure> {
        let what = format!("cannot read {}", self.uri);
        let TargetPage { address, model, page } = read_host_page(&self.uri, &self.options).context(&what)?;
        let Some(page) = page else { return Ok(Page::Other { address, model }) };
        let snapshot = Box::new(decode(&page.text).context(format!("{what}: log page C0h"))?);
        let left_out = [(page.connections_left_out, "connections"), (page.slow_left_out, "slow operations")];
        let left_out = left_out.into_iter().filter(|(count, _)| *count > 0);
        let not_seen = left_out.map(|(count, name)| NotSeen {
            what: format!("{count} {name} that did not fit into the page"),
            needs: String::from("`isolane explain` on the machine of the target"),
        });
        Ok(Page::Isolane { snapshot, not_seen: not_seen.collect() })
    }

    /// Reads the numbers twice, and returns the later ones with one step, the difference.
    pub fn observe(&self, window: Duration) -> Result<Page, Failure> {
        let earlier = match self.read()? {
            Page::Isolane { snapshot, .. } => snapshot,
            other @ Page::Other { .. } => return Ok(other),
        };
        std::thread::sleep(window);
        let mut page = self.read()?;
        if let Page::Isolane { snapshot, not_seen } = &mut page {
            if !snapshot.is_same_run(&earlier) {
                not_seen.push(NotSeen {
                    what: String::from("the time before a restart of the target, within the window"),
                    needs: String::from("another run of this command"),
                });
            }
            snapshot.steps = vec![difference(&earlier, snapshot)];
        }
        Ok(page)
    }
}

/// Returns the time between two copies as a step; after a restart, the time since the start.
pub fn difference(earlier: &Snapshot, later: &Snapshot) -> Step {
    let (numbers, length_ms) = if later.is_same_run(earlier) {
        (later.numbers.since(&earlier.numbers), later.at_unix_ms.saturating_sub(earlier.at_unix_ms))
    } else {
        (later.numbers.clone(), later.program.uptime_ms)
    };
    Step { at_unix_ms: later.at_unix_ms, length_ms: length_ms.max(1), numbers, ..Step::default() }
}

impl Remote for RemoteTarget {
    fn name(&self) -> String {
        self.uri.to_string()
    }

    fn read_text(&self) -> Result<Vec<u8>, String> {
        let TargetPage { address, model, page } =
            read_host_page(&self.uri, &self.options).map_err(|error| error.to_string())?;
        page.map(|page| page.text).ok_or_else(|| not_isolane(address, &model))
    }
}

/// Returns the reason for which a target has no page.
pub fn not_isolane(address: SocketAddr, model: &str) -> String {
    let model = shown_name(model, MAX_MODEL);
    format!(
        "{address} ({model}) is another program than Isolane, or an old one: all of it is one stage, the `wait` of a \
         host, as `isolane bench --explain` prints it"
    )
}

/// Longest model in text, in characters.
const MAX_MODEL: usize = 40;

#[cfg(test)]
mod tests {
    use isolane_observe::histogram::{Histogram, Resolution};
    use isolane_observe::snapshot::{Connection, Numbers, Program};
    use isolane_observe::stage::SizeClass;

    use super::*;

    /// A copy of a target that has run for some time, with these operations.
    fn copy(at_unix_ms: u64, uptime_ms: u64, operations: u64) -> Snapshot {
        let mut totals = Histogram::new(Resolution::Four);
        totals.record(100_000, operations);
        let connection =
            Connection { id: 1, totals: vec![(SizeClass::Small, totals)], ..Connection::default() };
        Snapshot {
            at_unix_ms,
            program: Program { uptime_ms, ..Program::default() },
            numbers: Numbers { connections: vec![connection], ..Numbers::default() },
            ..Snapshot::default()
        }
    }

    #[test]
    fn restarted_target_has_numbers_since_start() {
        let counted = |earlier: &Snapshot, later: &Snapshot| {
            let step = difference(earlier, later);
            (step.length_ms, step.numbers.connections.iter().map(|at| at.totals[0].1.count()).sum::<u64>())
        };
        let earlier = copy(20_000, 15_000, 500);
        assert_eq!(counted(&earlier, &copy(30_000, 25_000, 700)), (10_000, 200));
        assert_eq!(counted(&earlier, &copy(30_000, 4_000, 80)), (4_000, 80));
    }
}
