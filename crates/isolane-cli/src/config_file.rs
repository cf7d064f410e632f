//! Reading a configuration file.

use std::path::Path;
use std::sync::Arc;

use isolane_config::{Config, ReadError, read};
use isolane_rbd::Rbd;
use isolane_volumes::Kinds;

use crate::failure::{Failure, IoContext};
use crate::volume;

/// Returns the kinds of volumes in a file.
pub fn kinds() -> Kinds {
    volume::kinds(&Arc::new(Rbd::new(volume::RBD_IMAGES_PER_CONNECTION.into())))
}

/// Reads and checks a file.
pub fn load(path: &Path) -> Result<Config, Failure> {
    let name = path.display().to_string();
    let text = match read(path) {
        Ok(text) => text,
        Err(ReadError::System(error)) => return Err(error).io_context(format!("cannot read {name}")),
        Err(error) => return Err(Failure::new(format!("cannot read {name}"), error)),
    };
    Config::parse(&text, &name, &kinds()).map_err(Failure::from_error)
}
