//! `isolane ctl namespace`: volumes of a running target.

use std::sync::Arc;

use clap::ValueHint;
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter};
use isolane_rbd::Rbd;
use serde_json::{Value, json};

use super::Running;
use super::object::{Options, change, parse_key, to_map};
use crate::completions::names;
use crate::failure::Failure;
use crate::output;
use crate::serve::model::absolute_text;
use crate::serve::nqn;
use crate::units::{parse_bytes, show_bytes};
use crate::volume;

/// Add, remove, and change the volumes of the target
#[derive(Debug, clap::Args)]
#[command(disable_help_subcommand = true)]
pub struct Args {
    /// Subsystem of the namespace (default: the only one)
    #[arg(long, global = true, value_name = "NQN", add = ArgValueCandidates::new(names::subsystems))]
    subsystem: Option<String>,
    /// With add, remove, replace, set, and resize: leave the configuration file as it is until the target ends, or the
    /// file is applied (the others always do)
    #[arg(long, global = true)]
    runtime: bool,
    #[command(subcommand)]
    action: Action,
}

/// Change of one namespace.
#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Serve another volume
    ///
    /// The volume is written as for `isolane serve`; with nsid=N it gets that namespace ID, else one that no volume has
    /// had. Connected hosts see it at once. Prints the ID.
    Add {
        /// Volume, as mem:1G or /srv/b.img,size=10G
        #[arg(value_hint = ValueHint::AnyPath)]
        volume: String,
    },
    /// End a namespace, and close its volume
    ///
    /// Commands that have started complete, and those that wait are given back to their hosts. Then the volume
    /// is flushed and closed. Later commands fail, and hosts remove their disk: unmount it first. Waits up to 10 s until the volume is closed.
    Remove {
        /// Namespace ID
        #[arg(add = ArgValueCandidates::new(names::namespaces))]
        nsid: u32,
    },
    /// Serve another volume under the same ID
    ///
    /// Commands that have started complete at the volume before, which is then closed; hosts repeat those that wait, as
    /// for memory, qos, or a fault. Hosts keep their disk only if the volume has the same identity (uuid=), and should
    /// have the same data.
    Replace {
        /// Namespace ID
        #[arg(add = ArgValueCandidates::new(names::namespaces))]
        nsid: u32,
        /// Volume
        #[arg(value_hint = ValueHint::AnyPath)]
        volume: String,
        /// Allow a smaller volume
        #[arg(long)]
        shrink: bool,
    },
    /// Set keys of a namespace
    Set {
        /// Namespace ID
        #[arg(add = ArgValueCandidates::new(names::namespaces))]
        nsid: u32,
        /// Keys, as in docs/CONFIG.md; a list is a,b, or as in the file: 'qos={iops=500}', and KEY= restores the default
        #[arg(value_name = "KEY=VALUE", value_parser = parse_key, required = true, add = ArgValueCompleter::new(names::keys))]
        keys: Vec<(String, String)>,
    },
    /// Close the volume of a namespace, for work on its storage
    ///
    /// Not in the configuration file: a restart opens it. Hosts keep their disk, and repeat their commands until the namespace is online again. Linux gives up after about 5
    /// minutes.
    Offline {
        /// Namespace ID
        #[arg(add = ArgValueCandidates::new(names::namespaces))]
        nsid: u32,
    },
    /// Open the volume of a namespace that is offline
    Online {
        /// Namespace ID
        #[arg(add = ArgValueCandidates::new(names::namespaces))]
        nsid: u32,
        /// Allow a smaller volume
        #[arg(long)]
        shrink: bool,
    },
    /// Close and open the volume of a namespace, as after a failed sync
    ///
    /// Check the data on the storage first: writes that the target had completed may be lost.
    Reopen {
        /// Namespace ID
        #[arg(add = ArgValueCandidates::new(names::namespaces))]
        nsid: u32,
        /// Allow a smaller volume
        #[arg(long)]
        shrink: bool,
    },
    /// Serve the present size of a file or device, or set it
    ///
    /// Without a size, the namespace gets the size that the file or device has now. With a size, a file that is shorter
    /// grows.
    Resize {
        /// Namespace ID
        #[arg(add = ArgValueCandidates::new(names::namespaces))]
        nsid: u32,
        /// Size of a file, as 20G
        #[arg(value_parser = parse_bytes)]
        size: Option<u64>,
        /// Allow a smaller size: the blocks beyond it are no longer served, and the file keeps them
        #[arg(long)]
        shrink: bool,
    },
    /// Reject writes, or accept them again
    ///
    /// Not in the configuration file, where the volume can have the option ro.
    ReadOnly {
        /// Namespace ID
        #[arg(add = ArgValueCandidates::new(names::namespaces))]
        nsid: u32,
        /// Accept writes again
        #[arg(long)]
        off: bool,
    },
    /// Stall or fail a namespace on purpose, to test hosts and monitoring
    ///
    /// Commands of a stalled namespace are held and then answered, as if its volume did not complete them, but do not reach
    /// the volume; those that are held when the fault ends continue. A failed namespace rejects writes and Flush, as after
    /// a failed sync. Not in the configuration file: the fault ends with `clear`, with another volume, and with the program.
    Fault {
        /// Namespace ID
        #[arg(add = ArgValueCandidates::new(names::namespaces))]
        nsid: u32,
        /// Fault, or its end
        #[arg(value_parser = ["stall", "fail", "clear"])]
        fault: String,
    },
}

/// Runs the subcommand.
pub fn run(args: &Args, target: &Running) -> Result<(), Failure> {
    let all = match &args.subsystem {
        Some(nqn) => {
            let nqn = nqn::parse_nqn(nqn).map_err(Failure::of_usage)?;
            format!("/v1/subsystems/{}/namespaces", encode(nqn.as_str()))
        }
        None => "/v1/namespaces".to_owned(),
    };
    let path = |nsid: &u32, verb: &str| format!("{all}/{nsid}{verb}");
    let text = match &args.action {
        Action::Add { volume } => {
            let body = json!({ "volume": absolute(volume)?, "runtime": args.runtime });
            let added = target.execute("POST", &all, &body)?;
            describe(&added)
        }
        Action::Remove { nsid } => {
            let removed = target.execute("DELETE", &path(nsid, ""), &json!({ "runtime": args.runtime }))?;
            closing_text(*nsid, "removed", &removed)
        }
        Action::Replace { nsid, volume, shrink } => {
            let body = json!({ "volume": absolute(volume)?, "shrink": shrink, "runtime": args.runtime });
            let replaced = target.execute("POST", &path(nsid, "/replace"), &body)?;
            closing_text(*nsid, "replaced", &replaced)
        }
        Action::Set { nsid, keys } => {
            let name = target.subsystem(args.subsystem.as_deref())?;
            let edit = json!({
                "kind": "namespace", "name": name, "nsid": nsid, "action": "set", "keys": to_map(keys)
            });
            return change(target, edit, Options { runtime: args.runtime, ..Options::default() });
        }
        Action::Offline { nsid } => {
            let closed = target.execute("POST", &path(nsid, "/offline"), &Value::Null)?;
            closing_text(*nsid, "offline", &closed)
        }
        Action::Online { nsid, shrink } => {
            describe(&target.execute("POST", &path(nsid, "/online"), &json!({ "shrink": shrink }))?)
        }
        Action::Reopen { nsid, shrink } => {
            describe(&target.execute("POST", &path(nsid, "/reopen"), &json!({ "shrink": shrink }))?)
        }
        Action::Resize { nsid, size, shrink } => {
            let body = json!({ "bytes": size, "shrink": shrink, "runtime": args.runtime });
            let resized = target.execute("POST", &path(nsid, "/resize"), &body)?;
            let bytes = resized["bytes"].as_f64().unwrap_or_default();
            format!("namespace {nsid}: {}\n", show_bytes(bytes))
        }
        Action::ReadOnly { nsid, off } => {
            let body = json!({ "read_only": !off });
            target.execute("POST", &path(nsid, "/read-only"), &body)?;
            format!("namespace {nsid}: {} writes\n", if *off { "accepts" } else { "rejects" })
        }
        Action::Fault { nsid, fault } => {
            target.execute("POST", &path(nsid, "/fault"), &json!({ "fault": fault }))?;
            let what = match fault.as_str() {
                "stall" => "stalls until `fault clear`",
                "fail" => "fails until `fault clear`",
                _ => "has no fault",
            };
            format!("namespace {nsid}: {what}\n")
        }
    };
    output::write_stdout(crate::failure::printable(&text).as_bytes())
}

/// Returns a name as a segment of a path.
fn encode(name: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    name.bytes().map(encode).collect()
}

fn describe(namespace: &Value) -> String {
    let nsid = namespace["nsid"].as_u64().unwrap_or_default();
    format!("namespace {nsid}: {}\n", namespace["volume"].as_str().unwrap_or_default())
}

fn closing_text(nsid: u32, what: &str, reply: &Value) -> String {
    if reply["closed"] == true {
        return format!("namespace {nsid}: {what}; the volume before is closed\n");
    }
    format!(
        "namespace {nsid}: {what}; the volume before is closed once its operations end (isolane ctl status)\n"
    )
}

/// Returns a volume with the path of a file from the root, because the target has another working directory.
fn absolute(text: &str) -> Result<String, Failure> {
    let kinds = volume::kinds(&Arc::new(Rbd::new(volume::RBD_IMAGES_PER_CONNECTION.into())));
    let spec = volume::parse(&kinds, text, "serve", None)?;
    absolute_text(&spec, text)
}
