//! `isolane ctl status`: the namespaces of a running target.

use serde_json::Value;

use super::Running;
use crate::failure::Failure;
use crate::output;
use crate::units::show_bytes;

/// List the namespaces of the target, and removed volumes that are not closed yet
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args, target: &Running) -> Result<(), Failure> {
    let status = target.execute("GET", "/v1/namespaces", &Value::Null)?;
    output::show(&status, args.json, || to_text(&status))
}

fn to_text(status: &Value) -> String {
    let list = |key: &str| status[key].as_array().cloned().unwrap_or_default();
    let namespaces = list("namespaces");
    let subsystems = list("subsystems");
    let subsystems: Vec<&str> = subsystems.iter().filter_map(Value::as_str).collect();
    let mut text = String::new();
    for subsystem in &subsystems {
        if subsystems.len() > 1 {
            text += &format!("subsystem {subsystem}\n");
        }
        text += &format!("{:>4}  {:<8}  {:>10}  VOLUME\n", "NSID", "STATE", "SIZE");
        let of_subsystem = namespaces.iter().filter(|one| one["subsystem"] == *subsystem);
        for namespace in of_subsystem {
            text += &line(namespace);
            let reason = namespace["reason"].as_str();
            text += &reason.map_or_else(String::new, |reason| format!("{:>4}  {reason}\n", ""));
            text += &orphans(namespace);
        }
    }
    for closing in list("closing") {
        let (nsid, volume) = (closing["nsid"].as_u64(), closing["volume"].as_str());
        text += &format!(
            "{}: no longer namespace {}, and closed once its operations end\n",
            volume.unwrap_or_default(),
            nsid.unwrap_or_default()
        );
    }
    crate::failure::printable(&text)
}

/// Describes the changes of a stalled volume that can still land.
fn orphans(namespace: &Value) -> String {
    let list = namespace["orphans"].as_array().map(Vec::as_slice).unwrap_or_default();
    let number = |orphan: &Value, key: &str| orphan[key].as_u64().unwrap_or_default();
    let mut text = String::new();
    for orphan in list.iter().take(MAX_ORPHANS) {
        let (first, blocks) = (number(orphan, "first_block"), number(orphan, "blocks"));
        text += &format!(
            "{:>4}  orphan: {} of {blocks} blocks from block {first}, for {} s at the volume; later commands there wait\n",
            "",
            orphan["operation"].as_str().unwrap_or_default(),
            number(orphan, "age_ms") / 1000
        );
    }
    if list.len() > MAX_ORPHANS {
        text += &format!("{:>4}  and {} more orphans; --json lists all\n", "", list.len() - MAX_ORPHANS);
    }
    text
}

/// Number of orphans of a namespace that are described.
const MAX_ORPHANS: usize = 8;

fn line(namespace: &Value) -> String {
    let read_only = if namespace["read_only"] == true { ", read-only" } else { "" };
    format!(
        "{:>4}  {:<8}  {:>10}  {}{read_only}{}\n",
        namespace["nsid"].as_u64().unwrap_or_default(),
        namespace["state"].as_str().unwrap_or_default(),
        namespace["bytes"].as_f64().filter(|bytes| *bytes > 0.0).map_or("-".into(), show_bytes),
        namespace["volume"].as_str().unwrap_or_default(),
        max_speed(&namespace["qos"]),
    )
}

/// Returns the maximum speed as the end of a line.
fn max_speed(qos: &Value) -> String {
    let texts = [
        ("iops", ""),
        ("read_iops", " reads"),
        ("write_iops", " writes"),
        ("bytes", ""),
        ("read_bytes", " read"),
        ("write_bytes", " written"),
    ];
    let text = |(key, suffix): (&str, &str)| {
        let rate = qos[key].as_u64()?;
        let is_commands = key.ends_with("iops");
        let rate = if is_commands { format!("{rate} IOPS") } else { show_bytes(rate as f64) + "/s" };
        Some(format!(", at most {rate}{suffix}"))
    };
    texts.into_iter().filter_map(text).collect()
}
