//! The volume of a namespace.

use isolane_volume::spec::{Source, SpecError, VolumeSpec};
use isolane_volumes::Kinds;
use serde_json::{Value as Json, json};
use toml_edit::Value as Toml;

use crate::problem::Invalid;
use crate::value::{Value, text_of};

/// A volume, as on the command line, but without a namespace ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    text: String,
    spec: VolumeSpec,
    /// Names of the stores that hold its data, without memory.
    stores: Vec<String>,
    has_relative_path: bool,
}

impl Volume {
    /// Parses a volume of one of these kinds.
    ///
    /// # Errors
    /// Cause and remedy.
    pub fn new(text: &str, kinds: &Kinds) -> Result<Volume, String> {
        Volume::parse_text(text, kinds).map_err(|Invalid { reason, remedy }| format!("{reason}; {remedy}"))
    }

    fn parse_text(text: &str, kinds: &Kinds) -> Result<Volume, Invalid> {
        let invalid = |error: SpecError| Invalid::new(error.reason(), error.remedy());
        if text.chars().any(char::is_control) {
            return Err(Invalid::new("control characters in a volume", "remove them"));
        }
        let spec = kinds.parse(text).map_err(invalid)?;
        if spec.nsid.is_some() {
            return Err(Invalid::new("nsid= in a volume", "write the ID with the key nsid"));
        }
        let leaves = kinds.leaves(&spec).map_err(invalid)?;
        let paths = || {
            leaves.iter().filter_map(|leaf| match &leaf.source {
                Source::Path { path, .. } => Some(path),
                Source::Memory { .. } | Source::Null { .. } | Source::Nested { .. } => None,
            })
        };
        let has_relative_path = paths().any(|path| !path.is_absolute());
        let stores = leaves.iter().filter_map(store).collect();
        Ok(Volume { text: text.to_owned(), spec, stores, has_relative_path })
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the specification.
    pub fn spec(&self) -> &VolumeSpec {
        &self.spec
    }

    /// Returns names of the files, devices, and remote volumes that hold its data.
    pub(crate) fn stores(&self) -> &[String] {
        &self.stores
    }

    /// Whether its location depends on the working directory.
    pub(crate) fn has_relative_path(&self) -> bool {
        self.has_relative_path
    }
}

/// Returns the name of the store of a volume without members. Options of added kinds can name another store.
fn store(leaf: &VolumeSpec) -> Option<String> {
    match &leaf.source {
        Source::Memory { .. } | Source::Null { .. } => None,
        Source::Path { path, .. } => {
            Some(path.components().collect::<std::path::PathBuf>().display().to_string())
        }
        Source::Nested { options, .. } => Some(format!("{} {options:?}", leaf.name())),
    }
}

impl Value for Volume {
    const EXAMPLE: &'static str = "\"/srv/a.img,size=10G\"";

    fn parse(value: &Toml, kinds: &Kinds) -> Result<Volume, Invalid> {
        Volume::parse_text(text_of::<Volume>(value)?, kinds)
    }

    fn print(&self) -> Toml {
        self.text.as_str().into()
    }

    fn schema() -> Json {
        json!({ "type": "string", "minLength": 1 })
    }
}
