//! `isolane info`: a controller, its namespaces, and the negotiated settings.

use std::time::Duration;

use isolane_host::{ControllerInfo, Info, NamespaceInfo};
use serde_json::json;

use crate::failure::{Context, Failure};
use crate::host_args::{self, HostArgs, show_digests};
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
    let Info { address, nqn, controller, namespaces, negotiated } = info;
    let ControllerInfo { cntlid, model, serial, firmware, version, max_queue_entries, .. } = controller;
    let max_transfer = controller.max_transfer_bytes.map(|bytes| show_bytes(bytes as f64));
    let max_transfer = max_transfer.unwrap_or("any number of bytes".into());
    let offers = [
        ("volatile cache", controller.has_volatile_cache),
        ("write zeroes", controller.has_write_zeroes),
        ("deallocate", controller.has_deallocate),
        ("traffic based keep alive", controller.traffic_based_keep_alive),
    ];
    let offers =
        offers.map(|(name, present)| format!("{name} {}", if present { "yes" } else { "no" })).join(", ");
    let digests = show_digests(negotiated.header_digest, negotiated.data_digest);
    let in_capsule = show_bytes(f64::from(negotiated.max_in_capsule_bytes));
    let h2c_data = show_bytes(f64::from(negotiated.max_h2c_data_bytes));
    let alignment = negotiated.data_alignment_bytes;
    let flow_control = if negotiated.flow_control_disabled { "off" } else { "on" };
    let keep_alive = match negotiated.keep_alive {
        Duration::ZERO => "none".into(),
        time => format!("{time:?}"),
    };
    let mut text = format!(
        "subsystem    {nqn}\n\
         address      {address}\n\
         controller   {cntlid:#06x}: {model}, serial {serial}, firmware {firmware}, NVMe {version}\n\
         limits       {max_transfer} a command, {max_queue_entries} entries a queue\n\
         offers       {offers}\n\
         negotiated   digests {digests}, {in_capsule} in a capsule, {h2c_data} in an H2CData PDU, data aligned to \
         {alignment} B, queue flow control {flow_control}, keep alive {keep_alive}\n",
    );
    for namespace in namespaces {
        text += &format!("namespace    {}\n", describe(namespace));
    }
    if namespaces.is_empty() {
        text += "namespace    none\n";
    }
    text
}

fn describe(namespace: &NamespaceInfo) -> String {
    let NamespaceInfo { nsid, blocks, block_bytes, .. } = namespace;
    let size = show_bytes(namespace.len_bytes() as f64);
    let access = if namespace.read_only { ", read only" } else { "" };
    let identity = match (namespace.uuid, namespace.nguid) {
        (Some(uuid), _) => format!(", uuid {uuid}"),
        (None, Some(nguid)) => format!(", nguid {}", hex(&nguid)),
        (None, None) => String::new(),
    };
    format!("{nsid}: {size} ({blocks} blocks of {block_bytes} B){access}{identity}")
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
