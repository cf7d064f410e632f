//! Reading a configuration file.

use std::path::Path;
use std::sync::Arc;

use isolane_config::{Config, ReadError, read};
use isolane_rbd::Rbd;
use isolane_volumes::Kinds;

use crate::failure::Failure;
use crate::volume;

/// Returns the kinds of volumes in a file.
pub fn kinds() -> Kinds {
    volume::kinds(&Arc::new(Rbd::new(volume::RBD_IMAGES_PER_CONNECTION.into())))
}

/// Reads and checks a file.
pub fn load(path: &Path) -> Result<Config, Failure> {
    parse(path, &read_text(path)?)
}

/// Reads a file.
pub fn read_text(path: &Path) -> Result<String, Failure> {
    let name = path.display();
    read(path).map_err(|error| match error {
        ReadError::System(error) => Failure::from_io(format!("cannot read {name}"), &error),
        error => Failure::new(format!("cannot read {name}"), error),
    })
}

/// Checks the text of a file.
pub fn parse(path: &Path, text: &str) -> Result<Config, Failure> {
    Config::parse(text, &path.display().to_string(), &kinds()).map_err(Failure::from_error)
}
