//! `isolane info`: a controller, its namespaces, and the negotiated settings.

use std::fmt::Write;

use isolane_host::{Info, NamespaceInfo};
use serde_json::json;

use crate::failure::{Context, Failure};
use crate::host_args::{self, HostArgs};
use crate::output;
use crate::units::show_bytes;

/// Show a controller, its namespaces, and the negotiated settings
///
/// Connects with one lane, reads the settings, and disconnects. Sizes are in bytes, abbreviated in powers of 1024. The
/// connection is direct, even with via=engine in the URI.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The subsystem: nvme+tcp://HOST[:4420]/NQN
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
    let mut info = isolane_host::inspect(&uri, &options).context(format!("cannot inspect {uri}"))?;
    if let Some(nsid) = uri.nsid {
        info.namespaces.retain(|namespace| namespace.nsid == nsid);
        if info.namespaces.is_empty() {
            return Err(Failure::new(
                format!("cannot show namespace {nsid}"),
                "the subsystem has no such namespace",
            )
            .with_hint("omit nsid to see all"));
        }
    }
    output::show(&to_json(&info), args.json, || to_text(&info))
}

fn to_text(info: &Info) -> String {
    let mut text = format!("subsystem    {}\naddress      {}\n", info.nqn, info.address);
    controller_to_text(info, &mut text);
    negotiated_to_text(info, &mut text);
    for namespace in &info.namespaces {
        let _ = writeln!(
            text,
            "namespace    {}: {} ({} blocks of {} B){}{}",
            namespace.nsid,
            show_bytes(namespace.len_bytes() as f64),
            namespace.blocks,
            namespace.block_bytes,
            if namespace.read_only { ", read only" } else { "" },
            identity(namespace),
        );
    }
    if info.namespaces.is_empty() {
        text.push_str("namespace    none\n");
    }
    text
}

fn controller_to_text(info: &Info, text: &mut String) {
    let controller = &info.controller;
    let yes = |present: bool| if present { "yes" } else { "no" };
    let _ = writeln!(
        text,
        "controller   {:#06x}: {}, serial {}, firmware {}, NVMe {}",
        controller.cntlid, controller.model, controller.serial, controller.firmware, controller.version
    );
    let _ = writeln!(
        text,
        "limits       {} a command, {} entries a queue",
        controller.max_transfer_bytes.map_or("any number of bytes".into(), |bytes| show_bytes(bytes as f64)),
        controller.max_queue_entries,
    );
    let _ = writeln!(
        text,
        "offers       volatile cache {}, write zeroes {}, deallocate {}, traffic based keep alive {}",
        yes(controller.has_volatile_cache),
        yes(controller.has_write_zeroes),
        yes(controller.has_deallocate),
        yes(controller.traffic_based_keep_alive),
    );
}

fn negotiated_to_text(info: &Info, text: &mut String) {
    let negotiated = &info.negotiated;
    let digests = match (negotiated.header_digest, negotiated.data_digest) {
        (true, true) => "header and data",
        (true, false) => "header",
        (false, true) => "data",
        (false, false) => "none",
    };
    let _ = writeln!(
        text,
        "negotiated   digests {digests}, {} in a capsule, {} in an H2CData PDU, data aligned to {} B, \
         queue flow control {}, keep alive {}",
        show_bytes(f64::from(negotiated.max_in_capsule_bytes)),
        show_bytes(f64::from(negotiated.max_h2c_data_bytes)),
        negotiated.data_alignment_bytes,
        if negotiated.flow_control_disabled { "off" } else { "on" },
        if negotiated.keep_alive.is_zero() { "none".into() } else { format!("{:?}", negotiated.keep_alive) },
    );
}

fn identity(namespace: &NamespaceInfo) -> String {
    match (namespace.uuid, namespace.nguid) {
        (Some(uuid), _) => format!(", uuid {uuid}"),
        (None, Some(nguid)) => format!(", nguid {}", hex(&nguid)),
        (None, None) => String::new(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn to_json(info: &Info) -> serde_json::Value {
    let namespace = |namespace: &NamespaceInfo| {
        json!({
            "nsid": namespace.nsid,
            "block_bytes": namespace.block_bytes,
            "blocks": namespace.blocks,
            "bytes": namespace.len_bytes(),
            "uuid": namespace.uuid.map(|uuid| uuid.to_string()),
            "nguid": namespace.nguid.map(|nguid| hex(&nguid)),
            "eui64": namespace.eui64.map(|eui64| hex(&eui64)),
            "read_only": namespace.read_only,
        })
    };
    let (controller, negotiated) = (&info.controller, &info.negotiated);
    json!({
        "address": info.address.to_string(),
        "nqn": info.nqn.as_str(),
        "controller": {
            "cntlid": controller.cntlid,
            "serial": controller.serial,
            "model": controller.model,
            "firmware": controller.firmware,
            "version": controller.version.to_string(),
            "max_transfer_bytes": controller.max_transfer_bytes,
            "max_queue_entries": controller.max_queue_entries,
            "volatile_cache": controller.has_volatile_cache,
            "write_zeroes": controller.has_write_zeroes,
            "deallocate": controller.has_deallocate,
            "traffic_based_keep_alive": controller.traffic_based_keep_alive,
        },
        "negotiated": {
            "header_digest": negotiated.header_digest,
            "data_digest": negotiated.data_digest,
            "data_alignment_bytes": negotiated.data_alignment_bytes,
            "max_h2c_data_bytes": negotiated.max_h2c_data_bytes,
            "max_in_capsule_bytes": negotiated.max_in_capsule_bytes,
            "flow_control_disabled": negotiated.flow_control_disabled,
            "keep_alive_ms": negotiated.keep_alive.as_millis() as u64,
            "max_transfer_bytes": negotiated.max_transfer_bytes,
        },
        "namespaces": info.namespaces.iter().map(namespace).collect::<Vec<_>>(),
    })
}
