//! A volume, its members, and the devices beneath.

use std::path::Path;

use isolane_observe::snapshot::{Snapshot, Volume};

use super::{Node, Reader, interrupts};
use crate::system::{
    BlockDevice, ReadError, Reason, SMALL, decode_cpu_list, decode_device_number, device_of, devices_beneath,
    if_missing, show_cpus,
};

/// Longest chain of members that is followed.
const MAX_DEPTH: usize = 16;

/// Describes a volume.
pub(super) fn describe(reader: &mut Reader<'_>, snapshot: &Snapshot, volume: &Volume) -> Node {
    describe_at(reader, snapshot, volume, MAX_DEPTH)
}

fn describe_at(reader: &mut Reader<'_>, snapshot: &Snapshot, volume: &Volume, depth: usize) -> Node {
    let name = if volume.name.is_empty() { volume.id.to_string() } else { volume.name.clone() };
    let node = Node::new("volume", name)
        .fact("kind", volume.kind.clone())
        .fact("namespace", volume.nsid.map(|nsid| nsid.to_string()))
        .fact("path", volume.path.clone());
    let members = snapshot.volumes.iter().filter(|at| at.parent == Some(volume.id) && at.id != volume.id);
    let members: Vec<Node> = members
        .filter(|_| depth > 0)
        .map(|at| describe_at(reader, snapshot, at, depth.saturating_sub(1)))
        .collect();
    node.with(devices(reader, snapshot, volume)).with(members)
}

/// Describes the device of a volume and all devices beneath.
fn devices(reader: &mut Reader<'_>, snapshot: &Snapshot, volume: &Volume) -> Vec<Node> {
    let number = device_number(reader, snapshot, volume);
    let found = number.and_then(|number| reader.take(devices_beneath(reader.root, number)));
    found.unwrap_or_default().iter().map(|block| describe_device(reader, snapshot, block)).collect()
}

/// Returns the number of the device, from the snapshot or, on this system, from the path.
fn device_number(reader: &mut Reader<'_>, snapshot: &Snapshot, volume: &Volume) -> Option<(u32, u32)> {
    let known = snapshot.devices.iter().find(|at| Some(&at.name) == volume.device.as_ref());
    match (known, &volume.path) {
        (Some(device), _) => {
            let malformed = |error| ReadError { path: device.name.clone(), reason: Reason::Malformed(error) };
            reader.take(decode_device_number(&device.number).map_err(malformed))
        }
        (None, Some(path)) if reader.root.is_system() => reader.take(device_of(Path::new(path))),
        _ => None,
    }
}

fn describe_device(reader: &mut Reader<'_>, snapshot: &Snapshot, block: &BlockDevice) -> Node {
    let model = snapshot.devices.iter().find(|at| at.name == block.name).map(|at| at.model.clone());
    let node = Node::new("device", &block.name)
        .fact("number", format!("{}:{}", block.device.0, block.device.1))
        .fact("model", model)
        .fact("on", block.below.join(", "));
    let queues = queues(reader, block);
    node.with(queues).with(interrupts::describe_functions(reader, &block.functions))
}

/// Describes the hardware queues of a disk.
fn queues(reader: &mut Reader<'_>, block: &BlockDevice) -> Vec<Node> {
    let path = format!("{}/mq", block.path);
    let names = reader.take(reader.root.list(&path).or_else(if_missing)).unwrap_or_default();
    let mut nodes = Vec::new();
    for name in names {
        let list = format!("{path}/{name}/cpu_list");
        // The kernel writes `0, 1`.
        let decode = |text: &str| decode_cpu_list(&text.replace(' ', ""));
        let cpus = reader.take(reader.root.parse(&list, SMALL, decode));
        nodes.push(Node::new("queue", name).fact("cores", cpus.map(|cpus| show_cpus(&cpus))));
    }
    nodes
}
