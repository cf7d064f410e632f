//! Interrupt lines of a PCI function.

use super::{Node, Reader};
use crate::system::{IrqLine, PciFunction, if_missing, show_cpus};

/// Most lines that are described for one function.
const MAX_LINES: usize = 256;

/// Describes PCI functions, the nearest first, with the interrupt lines of the nearest.
pub(super) fn describe_functions(reader: &mut Reader<'_>, functions: &[PciFunction]) -> Vec<Node> {
    let mut nodes = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        let node = Node::new("function", &function.address)
            .fact("link", function.link.clone())
            .fact("NUMA node", function.numa_node.map(|node| node.to_string()));
        let lines = if index == 0 { describe_lines(reader, &function.irqs) } else { Vec::new() };
        nodes.push(node.with(lines));
    }
    nodes
}

fn describe_lines(reader: &mut Reader<'_>, numbers: &[u32]) -> Vec<Node> {
    let mut nodes = Vec::new();
    for number in numbers.iter().take(MAX_LINES) {
        let Some(line) = reader.take(IrqLine::read(reader.root, *number)) else { continue };
        let cpus = reader.take(IrqLine::cpus(reader.root, *number).or_else(if_missing));
        let mut node = Node::new("interrupt", number)
            .fact("handlers", line.actions.join(", "))
            .fact("cores", cpus.map(|cpus| show_cpus(&cpus)))
            .fact("chip", line.chip.clone());
        if line.is_behind_vmd() {
            let all = reader.irq_lines();
            let own = all.iter().find(|other| Some(u64::from(other.number)) == line.hwirq);
            let same = all.iter().filter(|other| other.is_behind_vmd() && other.hwirq == line.hwirq);
            let others = same.filter(|other| other.number != line.number).map(show_line);
            let others = others.collect::<Vec<_>>().join("; ");
            node = node.fact("vector of VMD", own.map(show_line)).fact("shares the vector with", others);
        }
        nodes.push(node);
    }
    nodes
}

fn show_line(line: &IrqLine) -> String {
    format!("{} ({})", line.number, line.actions.join(", "))
}
