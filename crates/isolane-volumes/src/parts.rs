//! Members and arguments from which a nested volume is opened.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use isolane_volume::tree::ARGUMENT;
use isolane_volume::{Identity, OpenError, Volume, VolumeInfo, VolumeTree};
use uuid::Uuid;

use crate::remote::JournalFile;

/// Members and arguments of a nested volume.
#[derive(Default)]
pub(crate) struct Parts {
    pub kind: &'static str,
    /// Specification without options.
    pub name: String,
    /// Text between the kind and the members.
    pub argument: String,
    pub members: Vec<Arc<dyn Volume>>,
    /// Options of the kind.
    pub options: Vec<(String, String)>,
    /// Requested identity.
    pub uuid: Option<Uuid>,
    /// Name of its group.
    pub group: Option<String>,
    /// Journal of the associations of remote volumes.
    pub journal: Option<Arc<JournalFile>>,
}

impl Parts {
    /// Returns the value of an option.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the description of the volume for statistics, without members.
    pub fn tree(&self) -> VolumeTree {
        let argument = Some(&self.argument).filter(|argument| !argument.is_empty());
        let argument = argument.map(|argument| (ARGUMENT.to_owned(), argument.clone()));
        let parameters = argument.into_iter().chain(self.options.iter().cloned()).collect();
        VolumeTree { parameters, group: self.group.clone(), ..VolumeTree::new(&self.name, self.kind) }
    }

    /// Returns the requested identity, or else the given one.
    pub fn identity(&self, default: impl FnOnce() -> Identity) -> Identity {
        self.uuid.map_or_else(default, |uuid| Identity { uuid })
    }

    /// Returns the first member, the only one of a filter.
    pub fn first(&self) -> &Arc<dyn Volume> {
        &self.members[0]
    }

    /// Returns the features that all of these members have, and the size of one. They must be different volumes.
    pub fn common_info<'a>(
        &self,
        members: impl IntoIterator<Item = &'a Arc<dyn Volume>>,
    ) -> Result<VolumeInfo, OpenError> {
        let (mut seen, mut common): (Vec<&Arc<dyn Volume>>, Option<VolumeInfo>) = (Vec::new(), None);
        for member in members {
            let (uuid, info) = (member.identity().uuid, member.info());
            if let Some(other) = seen.iter().find(|other| other.identity().uuid == uuid) {
                let reason =
                    format!("members {} and {} have the same UUID {uuid}", other.name(), member.name());
                return Err(self.error(reason, "use different volumes; give a copy of a volume a new uuid="));
            }
            let stores = member.stores();
            let is_shared = |other: &&&Arc<dyn Volume>| other.stores().iter().any(|id| stores.contains(id));
            if let Some(other) = seen.iter().find(is_shared) {
                let reason = format!("members {} and {} share a volume", other.name(), member.name());
                return Err(self.error(reason, "use different volumes, also at another address"));
            }
            let common = common.get_or_insert_with(|| info.clone());
            if (info.block_size, info.blocks) != (common.block_size, common.blocks) {
                let reason = format!(
                    "{} has {} blocks of {} bytes, {} has {} of {}",
                    seen[0].name(),
                    common.blocks,
                    common.block_size,
                    member.name(),
                    info.blocks,
                    info.block_size
                );
                return Err(self.error(reason, "use members of the same size and block size"));
            }
            common.read_only |= info.read_only;
            common.volatile_cache |= info.volatile_cache;
            common.deallocate &= info.deallocate;
            common.zeroes_after_deallocate &= info.zeroes_after_deallocate;
            seen.push(member);
        }
        common.ok_or_else(|| self.error("no members", "name several volumes, separated by semicolons"))
    }

    /// Parses a duration in `us`, `ms`, or `s`.
    pub fn duration(&self, text: &str) -> Result<Duration, OpenError> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "us" => Some(Duration::from_micros(1)),
            "ms" => Some(Duration::from_millis(1)),
            "s" => Some(Duration::from_secs(1)),
            _ => None,
        };
        let duration = unit.zip(digits.parse().ok()).and_then(|(unit, number)| unit.checked_mul(number));
        duration.filter(|duration| *duration <= MAX_DURATION).ok_or_else(|| {
            self.error(format!("invalid duration {text:?}"), "use us, ms, or s, at most 3600s, such as 5ms")
        })
    }

    /// Returns the error of an option, or of members that do not fit.
    pub fn error(&self, reason: impl Into<String>, remedy: impl Into<String>) -> OpenError {
        OpenError::invalid(&self.name, reason, remedy)
    }

    /// Returns the error of a resource that the system refused.
    pub fn system_error(&self, error: &io::Error, remedy: &str) -> OpenError {
        OpenError::new(&self.name, error.to_string(), remedy).with_os_error(error.raw_os_error())
    }
}

const MAX_DURATION: Duration = Duration::from_secs(3600);
