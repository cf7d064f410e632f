//! The directory of the provider of libfabric, for `FI_PROVIDER_PATH`.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, IoContext};
use crate::preload::{check_path, places};

/// The file of the provider. libfabric loads files whose names end in this way.
const LIBRARY: &str = "libisolane-fi.so";
/// Its name as built.
const BUILT: &str = "libisolane_fabric.so";
/// Name of its directory.
const DIRECTORY: &str = "libfabric";

/// Returns the directory of the provider, or `None` if it is not installed with this program.
///
/// # Errors
/// [`Failure`] if a list of the environment cannot hold it, or a built provider gets no directory.
pub fn find() -> Result<Option<PathBuf>, Failure> {
    find_in(&places()?)
}

fn find_in(places: &[PathBuf]) -> Result<Option<PathBuf>, Failure> {
    if places[0].join(BUILT).is_file() {
        let directory = places[0].join(DIRECTORY);
        link(&directory).io_context(directory.display())?;
    }
    let mut directories = places.iter().map(|place| place.join(DIRECTORY));
    let Some(directory) = directories.find(|directory| directory.join(LIBRARY).is_file()) else {
        return Ok(None);
    };
    check_path(&directory, &directory.display())?;
    Ok(Some(directory))
}

/// Gives a built provider the name that libfabric expects.
fn link(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    match symlink(Path::new("..").join(BUILT), directory.join(LIBRARY)) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_built_or_installed_provider() {
        let directory = tempfile::tempdir().unwrap();
        let places = ["bin", "lib", "lib/isolane"].map(|name| directory.path().join(name));
        places.iter().for_each(|place| fs::create_dir_all(place).unwrap());
        assert_eq!(find_in(&places).unwrap(), None);
        let installed = places[2].join(DIRECTORY);
        fs::create_dir(&installed).unwrap();
        fs::write(installed.join(LIBRARY), "").unwrap();
        assert_eq!(find_in(&places).unwrap(), Some(installed));
        fs::write(places[0].join(BUILT), "built").unwrap();
        for _ in 0..2 {
            let found = find_in(&places).unwrap().unwrap();
            assert_eq!(found, places[0].join(DIRECTORY));
            assert_eq!(fs::read(found.join(LIBRARY)).unwrap(), b"built");
        }
    }
}
