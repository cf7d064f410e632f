//! `isolane ctl events`: hosts, namespaces, and changes of a running target.

use isolane_inspect::source::follow;
use isolane_inspect::text::{date, time_of_day};
use serde_json::Value;

use super::Running;
use crate::failure::{Failure, printable};
use crate::output;

/// Print events of the target
///
/// Hosts that connect and disconnect, namespaces that come, go, and change their state, applied configurations, and
/// Connects above a limit. Without --follow, the last 256 events since the start.
///
/// A reader that is too slow gets a line with the number of events that it has lost.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Wait for later events, until the target ends
    #[arg(long)]
    follow: bool,
    /// Print a JSON object for each event
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args, target: &Running) -> Result<(), Failure> {
    let mut written = Ok(());
    let path = if args.follow { "/v1/events/follow" } else { "/v1/events" };
    let print = |line: &str| {
        let event: Option<Value> = serde_json::from_str(line).ok();
        written = event.map_or(Ok(()), |event| {
            let text = if args.json { line.to_owned() } else { to_text(&event) };
            output::write_stdout((printable(&text) + "\n").as_bytes())
        });
        written.is_ok() && !output::is_closed()
    };
    let followed = if args.follow { follow(&target.socket, path, print) } else { target.lines(path, print) };
    written?;
    followed.map_err(|reason| Failure::new(target.socket.display(), reason))
}

fn to_text(event: &Value) -> String {
    let at = event["at_unix_ms"].as_u64().unwrap_or_default();
    let mut text =
        format!("{} {}  {}", date(at), time_of_day(at), event["event"].as_str().unwrap_or_default());
    for (key, value) in event.as_object().into_iter().flatten() {
        match value {
            _ if matches!(key.as_str(), "event" | "at_unix_ms" | "number") => {}
            Value::Null => {}
            Value::String(value) => text += &format!("  {key}={value}"),
            value => text += &format!("  {key}={value}"),
        }
    }
    text
}
