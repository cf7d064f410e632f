//! Who is attached and what they have, for whoever runs the engine.

use std::fmt::{self, Display, Formatter};

use isolane_attach::control::Object;

use super::Control;
use super::client::{Attached, Client, Stage};

impl Control {
    /// A line about the engine, one about each session, and one about each of its volumes. No more of them than the
    /// limits allow.
    pub(super) fn overview(&self) -> String {
        let clients = self.clients.values();
        let lines: Vec<_> = clients.filter_map(|client| Line::of(client, &self.config.cores)).collect();
        let here = lines.iter().filter(|line| line.client.is_here()).count();
        let (epoch, process, most) = (self.epoch, std::process::id(), self.config.clients_max);
        let text: String = lines.iter().map(Line::to_string).collect();
        format!("engine {epoch}, process {process}: {here} sessions, of {most} at most\n{text}")
    }
}

/// What is said about a session.
struct Line<'a> {
    client: &'a Client,
    attached: &'a Attached,
    /// Their numbers.
    cores: &'a [usize],
}

impl<'a> Line<'a> {
    /// None of who has not said hello.
    fn of(client: &'a Client, cores: &'a [usize]) -> Option<Line<'a>> {
        match &client.stage {
            Stage::Attached(attached) => Some(Line { client, attached, cores }),
            Stage::Stranger => None,
        }
    }
}

impl Display for Line<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Line { client, attached, cores } = self;
        let volumes = attached.objects.values().filter_map(|held| match &held.open.object {
            Object::Volume { uri, .. } => {
                Some((cores.get(held.core as usize).copied().unwrap_or_default(), uri))
            }
            Object::Stream(_) => None,
        });
        let volumes: Vec<_> = volumes.collect();
        let streams = attached.objects.len() - volumes.len();
        let queues = attached.queues.len();
        write!(f, "  {client}: {streams} streams, {} volumes, {queues} queues", volumes.len())?;
        match &attached.memory {
            Some(memory) => writeln!(f, ", {} MiB of memory", memory.bytes() >> 20)?,
            None => writeln!(f, "; it has left, and this is not done yet")?,
        }
        // A client may have written anything there.
        volumes.iter().try_for_each(|(core, uri)| writeln!(f, "    {uri:?} on core {core}"))
    }
}
