//! Hardware beneath a volume, and the cores and connections of its program.
//!
//! [`describe`] combines a snapshot with files of `/proc` and `/sys`: volume, device, PCI function, interrupt line, and
//! CPU; reactor, core, and its other users; connection and network device.
//!
//! Invariant: a file that cannot be read is listed as not seen, and everything else is described.

mod connections;
mod interrupts;
mod node;
mod reactors;
mod volumes;

use std::rc::Rc;

use isolane_observe::snapshot::{Snapshot, Volume};
use serde::Serialize;

use crate::system::{IrqLine, ReadError, Root};

pub use self::node::Node;

/// The hardware of one volume.
#[derive(Debug, Default, Serialize)]
pub struct Topology {
    /// The volume, the reactors, the connections, and the network devices.
    pub nodes: Vec<Node>,
    /// Files that could not be read, with the reason.
    pub not_seen: Vec<String>,
}

/// Returns the volume with a name, path, or namespace ID.
pub fn find<'a>(snapshot: &'a Snapshot, name: &str) -> Option<&'a Volume> {
    let nsid = name.parse().ok();
    let by_name = snapshot.volumes.iter().find(|at| at.name == name || at.path.as_deref() == Some(name));
    by_name.or_else(|| snapshot.volumes.iter().find(|at| nsid.is_some() && at.nsid == nsid))
}

/// Describes a volume of a snapshot.
pub fn describe(root: &Root, snapshot: &Snapshot, volume: &Volume) -> Topology {
    let pid = snapshot.program.pid.to_string();
    let process = if root.exists(&format!("/proc/{pid}")) { pid } else { "self".to_owned() };
    let mut reader = Reader { root, process, irq_lines: None, not_seen: Vec::new() };
    let mut nodes = vec![volumes::describe(&mut reader, snapshot, volume)];
    nodes.extend(reactors::describe(&mut reader, &snapshot.numbers.cores));
    nodes.extend(connections::describe(&mut reader, snapshot));
    Topology { nodes, not_seen: reader.not_seen }
}

/// Returns the topology as text for people, two spaces for each level.
pub fn to_text(topology: &Topology) -> String {
    let nodes: String = topology.nodes.iter().map(Node::to_text).collect();
    let missing = topology.not_seen.iter().map(|text| crate::text::shown_name(text, 200));
    let missing = missing.collect::<Vec<_>>().join("; ");
    if missing.is_empty() { nodes } else { format!("{nodes}not seen: {missing}\n") }
}

/// Most files that are listed as not seen.
const MAX_NOT_SEEN: usize = 16;

/// Reads files, and collects the errors.
struct Reader<'a> {
    root: &'a Root,
    /// The program's directory in `/proc`.
    process: String,
    /// All interrupt lines of the system, once they are needed.
    irq_lines: Option<Rc<[IrqLine]>>,
    not_seen: Vec<String>,
}

impl Reader<'_> {
    /// Returns a value, or adds the error to the files that were not seen.
    fn take<T>(&mut self, read: Result<T, ReadError>) -> Option<T> {
        match read {
            Ok(value) => return Some(value),
            Err(error) if self.not_seen.len() < MAX_NOT_SEEN => self.not_seen.push(error.to_string()),
            Err(_) => {}
        }
        None
    }

    /// Returns all interrupt lines, which are read once.
    fn irq_lines(&mut self) -> Rc<[IrqLine]> {
        if let Some(lines) = &self.irq_lines {
            return Rc::clone(lines);
        }
        let lines = self.take(IrqLine::all(self.root)).unwrap_or_default();
        let lines: Rc<[IrqLine]> = lines.into_iter().filter_map(|line| self.take(line)).collect();
        self.irq_lines = Some(Rc::clone(&lines));
        lines
    }
}

#[cfg(test)]
mod tests;
