//! Status of an engine for its operator.

use std::fmt::Write;

use super::Control;
use crate::files::STATUS_SESSIONS;

impl Control {
    /// Returns a line about the engine, one for each session, and one for each object whose kind describes it.
    pub(super) fn status(&self) -> String {
        let (mut text, mut connected) = (String::new(), 0);
        for client in self.clients.values() {
            let Some(attached) = &client.attached else { continue };
            connected += usize::from(client.is_connected());
            let kinds = self.kinds.iter().enumerate();
            let counts = kinds.map(|(kind, it)| format!("{} {}, ", attached.count(kind), it.name()));
            let _ =
                write!(text, "  {client}: {}{} queues", counts.collect::<String>(), attached.queues.len());
            let _ = if client.is_connected() {
                writeln!(text, ", {} MiB of memory", attached.memory.bytes() >> 20)
            } else {
                writeln!(text, "; it has left, and its objects are closing")
            };
            for object in attached.objects.values() {
                let core = self.config.cores.get(object.core as usize).copied().unwrap_or_default();
                let description = self.kinds[object.kind].describe(&object.open.object.params);
                let _ = description.map(|object| writeln!(text, "    {object} on core {core}"));
            }
        }
        let (epoch, process, max) = (self.epoch, std::process::id(), self.config.max_clients);
        format!("engine {epoch}, process {process}: {connected}{STATUS_SESSIONS}{max} at most\n{text}")
    }
}
