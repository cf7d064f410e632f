//! `isolane discover`: the subsystems that a target offers.

use isolane_host::DiscoveredSubsystem;
use serde_json::json;

use crate::failure::{Context, Failure};
use crate::host_args::{self, HostArgs};
use crate::output;

/// List the subsystems of a target
///
/// Reads the log of the discovery controller at HOST[:4420] and prints one line per entry. Ignores an NQN in the URI.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Target: nvme+tcp://HOST[:4420]
    #[arg(value_name = "URI")]
    uri: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    host: HostArgs,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let uri = host_args::parse_uri(&args.uri)?;
    let options = args.host.options()?;
    let entries =
        isolane_host::discover(&uri, &options).context(format!("cannot discover {}", uri.authority()))?;
    output::show(&to_json(&entries), args.json, || to_text(&entries, options.host_nqn.as_str()))
}

fn to_text(entries: &[DiscoveredSubsystem], host_nqn: &str) -> String {
    if entries.is_empty() {
        return format!("nothing is offered to host {host_nqn}\n");
    }
    let line = |entry: &DiscoveredSubsystem| {
        let DiscoveredSubsystem { transport, address, port, nqn, .. } = entry;
        format!("{:<9} {transport:<4} {address} port {port} {nqn}\n", subtype(entry))
    };
    entries.iter().map(line).collect()
}

fn subtype(entry: &DiscoveredSubsystem) -> &'static str {
    if entry.nvm { "nvm" } else { "discovery" }
}

fn to_json(entries: &[DiscoveredSubsystem]) -> serde_json::Value {
    let entry = |entry: &DiscoveredSubsystem| {
        json!({
            "subtype": subtype(entry),
            "trtype": entry.transport,
            "traddr": entry.address,
            "trsvcid": entry.port,
            "portid": entry.port_id,
            "subnqn": entry.nqn.as_str(),
        })
    };
    json!({ "records": entries.iter().map(entry).collect::<Vec<_>>() })
}
