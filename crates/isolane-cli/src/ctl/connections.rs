//! `isolane ctl connections` and `disconnect`: connections of hosts.

use std::net::SocketAddr;

use clap_complete::engine::ArgValueCandidates;
use serde_json::{Value, json};

use super::Running;
use crate::completions::names;
use crate::failure::{Failure, printable};
use crate::output;

/// List the connections of hosts
///
/// Each line has the address of the host, the port, the controller ID and the queue ID (0 is the admin queue), the state,
/// whether the host has authenticated, the core, the age, and the commands at volumes; then the host and the subsystem.
/// An upgrade starts the ages again.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// End the connections of a host, or one connection
///
/// Commands that have started complete, for 5 s at most. Then the connections close, also those with the discovery
/// service. The end of an admin queue ends its association, with all of its connections.
///
/// The host may connect again, and Linux does after a few seconds. To keep a host out, remove it from the hosts of the
/// subsystem (`isolane ctl subsystem set`).
#[derive(Debug, clap::Args)]
pub struct DisconnectArgs {
    /// NQN of a host, or address of one connection with its port, as `isolane ctl connections` lists them
    #[arg(value_name = "HOSTNQN|ADDRESS", add = ArgValueCandidates::new(names::connections))]
    name: String,
}

/// Runs `connections`.
pub fn run(args: &Args, target: &Running) -> Result<(), Failure> {
    let list = target.execute("GET", "/v1/connections", &Value::Null)?;
    output::show(&list, args.json, || to_text(&list))
}

/// Runs `disconnect`.
pub fn disconnect(args: &DisconnectArgs, target: &Running) -> Result<(), Failure> {
    let body = match args.name.parse::<SocketAddr>() {
        Ok(address) => json!({ "address": address.to_string() }),
        Err(_) => json!({ "host": args.name }),
    };
    let ended = target.execute("POST", "/v1/connections/disconnect", &body)?;
    let count = |key: &str, one: &str| match ended[key].as_u64().unwrap_or_default() {
        1 => format!("1 {one}"),
        count => format!("{count} {one}s"),
    };
    let text = match ended["associations"].as_u64() {
        Some(0) | None => count("connections", "connection"),
        Some(_) => count("associations", "association"),
    };
    output::write_stdout(format!("{text} disconnected; the host may connect again\n").as_bytes())
}

fn to_text(list: &Value) -> String {
    let connections = list["connections"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut rows = vec![HEADER.map(str::to_owned)];
    rows.extend(connections.iter().map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    printable(&text)
}

fn row(connection: &Value) -> [String; COLUMNS] {
    let text = |key: &str| match &connection[key] {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(is_set) => if *is_set { "yes" } else { "no" }.to_owned(),
        other => other.to_string(),
    };
    KEYS.map(|key| if key == "age_s" { text(key) + " s" } else { text(key) })
}

const COLUMNS: usize = 11;
const HEADER: [&str; COLUMNS] =
    ["ADDRESS", "PORT", "CNTLID", "QID", "STATE", "AUTH", "CORE", "AGE", "COMMANDS", "HOST", "SUBSYSTEM"];
const KEYS: [&str; COLUMNS] = [
    "address",
    "port",
    "cntlid",
    "qid",
    "state",
    "authenticated",
    "core",
    "age_s",
    "commands",
    "host",
    "subsystem",
];
