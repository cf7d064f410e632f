//! `isolane verbs devices`: the devices that programs find.

use std::fmt::Write;

use serde::Serialize;

use crate::failure::{Failure, IoContext};
use crate::output;

/// List the RDMA devices that programs find under `isolane verbs run`
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    device: String,
    address: String,
    interface: String,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let addresses = isolane_verbs::local_addresses().io_context("cannot list the local addresses")?;
    let rows: Vec<Row> = addresses
        .into_iter()
        .enumerate()
        .map(|(index, local)| Row {
            device: isolane_verbs::device_name(index),
            address: local.address.to_string(),
            interface: local.name,
        })
        .collect();
    output::show(&rows, args.json, || to_text(&rows))
}

fn to_text(rows: &[Row]) -> String {
    let mut text = format!("{:<12} {:<40} interface\n", "device", "address");
    for Row { device, address, interface } in rows {
        let _ = writeln!(text, "{device:<12} {address:<40} {interface}");
    }
    text
}
