//! A part of the topology, with the parts beneath it.

use serde::Serialize;

use crate::text::shown_name;

/// Longest shown value.
const MAX_SHOWN: usize = 200;

/// A volume, device, core, or connection.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Node {
    /// `volume`, `device`, `queue`, `function`, `interrupt`, `reactor`, `task`, `connection`, or `network device`.
    pub kind: &'static str,
    /// Name or number.
    pub name: String,
    /// Names and values.
    pub facts: Vec<(&'static str, String)>,
    /// Parts beneath it.
    pub below: Vec<Node>,
}

impl Node {
    pub(super) fn new(kind: &'static str, name: impl ToString) -> Node {
        Node { kind, name: name.to_string(), ..Node::default() }
    }

    /// Adds a fact, unless its value is unknown or empty.
    pub(super) fn fact(mut self, name: &'static str, value: impl Into<Option<String>>) -> Node {
        self.facts.extend(value.into().filter(|value| !value.is_empty()).map(|value| (name, value)));
        self
    }

    /// Adds parts beneath it.
    pub(super) fn with(mut self, below: impl IntoIterator<Item = Node>) -> Node {
        self.below.extend(below);
        self
    }

    /// Returns the lines of this part and of those beneath it.
    pub(super) fn to_text(&self) -> String {
        let (mut text, mut waiting) = (String::new(), vec![(0, self)]);
        while let Some((level, node)) = waiting.pop() {
            let facts =
                node.facts.iter().map(|(name, value)| format!("{name} {}", shown_name(value, MAX_SHOWN)));
            let facts = facts.collect::<Vec<_>>().join("; ");
            let separator = if facts.is_empty() { "" } else { ": " };
            let name = shown_name(&node.name, MAX_SHOWN);
            text += &format!("{:1$}{2} {name}{separator}{facts}\n", "", 2 * level, node.kind);
            waiting.extend(node.below.iter().rev().map(|below| (level + 1, below)));
        }
        text
    }
}
