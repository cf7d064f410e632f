//! Members and arguments from which a nested volume is opened.

use std::sync::Arc;

use isolane_volume::{Identity, OpenError, Volume};
use uuid::Uuid;

/// Members and arguments of a nested volume.
pub(crate) struct Parts {
    /// Specification without options.
    pub name: String,
    /// Text between the kind and the members.
    pub argument: String,
    pub members: Vec<Arc<dyn Volume>>,
    /// Options of the kind.
    pub options: Vec<(String, String)>,
    /// Requested identity.
    pub uuid: Option<Uuid>,
}

impl Parts {
    /// Returns the value of an option.
    #[allow(dead_code)]
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the requested identity, or else the given one.
    pub fn identity(&self, default: impl FnOnce() -> Identity) -> Identity {
        self.uuid.map_or_else(default, |uuid| Identity { uuid })
    }

    /// Returns the only member.
    pub fn only_member(&self) -> Result<Arc<dyn Volume>, OpenError> {
        match &self.members[..] {
            [member] => Ok(Arc::clone(member)),
            members => Err(self.error(
                format!("one volume expected, {} given", members.len()),
                "write `;` and its neighbors in parentheses if they belong to that volume",
            )),
        }
    }

    pub fn error(&self, reason: impl Into<String>, remedy: impl Into<String>) -> OpenError {
        OpenError::new(&self.name, reason, remedy)
    }
}
