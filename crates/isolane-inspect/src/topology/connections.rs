//! Connections, and the network devices that they use.

use std::collections::BTreeMap;

use isolane_observe::snapshot::{Snapshot, Tcp};

use super::{Node, Reader, interrupts};
use crate::system::{
    Root, Route, SMALL, decode_cpu_mask, device_of_peer, if_missing, pci_functions, show_cpus,
};

/// Most connections that are described.
const MAX_CONNECTIONS: usize = 256;

/// Describes the connections, then the network devices.
pub(super) fn describe(reader: &mut Reader<'_>, snapshot: &Snapshot) -> Vec<Node> {
    let connections = &snapshot.numbers.connections;
    if connections.is_empty() {
        return Vec::new();
    }
    let routes = reader.take(Route::read(reader.root, &reader.process)).unwrap_or_default();
    let mut cards = BTreeMap::new();
    let mut nodes = Vec::new();
    for connection in connections.iter().take(MAX_CONNECTIONS) {
        let device = device_of_peer(&routes, &connection.local, &connection.peer);
        let mut queue = None;
        if let Some(device) = &device {
            let card = cards.entry(device.clone()).or_insert_with(|| Card::read(reader, device));
            let core = snapshot.numbers.cores.iter().find(|core| core.index == connection.core);
            queue = card.send_queue(core.and_then(|core| core.cpu));
        }
        let node = Node::new("connection", &connection.peer)
            .fact("to", connection.local.clone())
            .fact("host", connection.host.clone())
            .fact("queue pair", connection.queue.to_string())
            .fact("reactor", connection.core.to_string())
            .fact("network device", device)
            .fact("sends on", queue)
            .fact("TCP", connection.tcp.as_ref().map(show_tcp));
        nodes.push(node);
    }
    nodes.extend(cards.into_iter().map(|(name, card)| card.node(name)));
    nodes
}

fn show_tcp(tcp: &Tcp) -> String {
    format!(
        "round trip {} us, at least {} us, window {} segments of {} bytes, {} of {} segments sent again, {} bytes \
         not sent, receive window full {} of {} us",
        tcp.rtt_us,
        tcp.min_rtt_us,
        tcp.cwnd,
        tcp.mss,
        tcp.retransmits,
        tcp.segments,
        tcp.unsent_bytes,
        tcp.rwnd_limited_us,
        tcp.busy_us,
    )
}

/// A network device.
struct Card {
    /// Names of the queues, with the cores that software assigns to each: XPS for sending, RPS for receiving.
    queues: Vec<(String, Vec<u32>)>,
    functions: Vec<Node>,
}

impl Card {
    fn read(reader: &mut Reader<'_>, name: &str) -> Card {
        // The name is from a table of the kernel, but the root can be a copy that anybody wrote.
        let is_name = !name.contains('/') && name != "..";
        let path = is_name.then(|| reader.root.resolve(&format!("/sys/class/net/{name}")));
        let Some(path) = path.and_then(|path| reader.take(path)) else {
            return Card { queues: Vec::new(), functions: Vec::new() };
        };
        let functions = reader.take(pci_functions(reader.root, &path)).unwrap_or_default();
        let functions = interrupts::describe_functions(reader, &functions);
        let names =
            reader.take(reader.root.list(&format!("{path}/queues")).or_else(if_missing)).unwrap_or_default();
        let queues = names.into_iter().map(|queue| {
            let file = if queue.starts_with("tx-") { "xps_cpus" } else { "rps_cpus" };
            let cpus = assigned(reader.root, &format!("{path}/queues/{queue}/{file}"));
            (queue, cpus)
        });
        Card { queues: queues.collect(), functions }
    }

    /// Returns the queue on which a core sends, if only one is possible.
    fn send_queue(&self, cpu: Option<u32>) -> Option<String> {
        let queues = || self.queues.iter().filter(|(name, _)| name.starts_with("tx-"));
        let mut assigned = queues().filter(|(_, cpus)| cpu.is_some_and(|cpu| cpus.contains(&cpu)));
        let by_core = assigned.next().filter(|_| assigned.next().is_none());
        let mut all = queues();
        let found = by_core.or_else(|| all.next().filter(|_| all.next().is_none()));
        found.map(|(name, _)| name.clone())
    }

    fn node(self, name: String) -> Node {
        let queues = self.queues.into_iter().map(|(name, cpus)| {
            let software = if name.starts_with("tx-") { "XPS cores" } else { "RPS cores" };
            Node::new("queue", name).fact(software, (!cpus.is_empty()).then(|| show_cpus(&cpus)))
        });
        Node::new("network device", name).with(queues).with(self.functions)
    }
}

/// Returns the cores of a queue. A device with one queue has no such file, or refuses to be read.
fn assigned(root: &Root, path: &str) -> Vec<u32> {
    root.parse(path, SMALL, decode_cpu_mask).unwrap_or_default()
}
