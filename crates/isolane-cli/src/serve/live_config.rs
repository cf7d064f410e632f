//! The configuration file of a running target.
//!
//! Invariant: `Current::text` is the text that was applied last, and the file has it unless somebody has edited the file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isolane_config::{Config, replace};

use super::auth::LiveKeys;
use super::from_file;
use crate::config_file;
use crate::failure::Failure;

/// A configuration file, and what the target has of it.
pub struct LiveConfig {
    path: PathBuf,
    /// Access without authentication from other machines is rejected.
    strict: bool,
    /// Keys of hosts.
    pub keys: Arc<LiveKeys>,
    current: Mutex<Current>,
}

/// The configuration of the target at present.
pub struct Current {
    /// Its text in the file.
    pub text: String,
    /// What the target does, also by changes that are not in the file.
    pub running: Config,
    /// The same, but as each object was when the target began to serve it.
    pub started: Config,
}

impl LiveConfig {
    /// `config` is that of `text`, the content of the file.
    pub fn new(path: &Path, strict: bool, text: String, config: Config, keys: Arc<LiveKeys>) -> LiveConfig {
        let current = Mutex::new(Current { text, running: config.clone(), started: config });
        LiveConfig { path: path.to_owned(), strict, keys, current }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the present configuration. It changes only while this is held.
    pub fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file.
    pub fn read(&self) -> Result<String, Failure> {
        config_file::read_text(&self.path)
    }

    /// Checks a new text.
    pub fn parse(&self, text: &str) -> Result<Config, Failure> {
        let config = config_file::parse(&self.path, text)?;
        self.check(&config)?;
        Ok(config)
    }

    /// Checks that this version can serve a new configuration.
    pub fn check(&self, config: &Config) -> Result<(), Failure> {
        from_file::check(&self.path, config, self.strict).map(drop)
    }

    /// Returns the text of the file, into which a change of one key goes.
    ///
    /// # Errors
    /// If the file has changes that were not applied, because the change would apply these as well.
    pub fn text_for_edit(&self, current: &Current) -> Result<String, Failure> {
        let text = self.read()?;
        if text == current.text {
            return Ok(text);
        }
        let path = self.path.display();
        Err(Failure::new(
            format!("{path} has changes that are not applied"),
            "this change would apply them also",
        )
        .with_hint(format_args!("run `isolane config apply {path}` first, or undo them")))
    }

    /// Writes a new text into the file, unless the file has it.
    ///
    /// # Errors
    /// If the file has changes that are in neither text, or cannot be written.
    pub fn write(&self, current: &Current, text: &str) -> Result<(), Failure> {
        let found = self.read()?;
        if found == text {
            return Ok(());
        }
        let failed = |reason: &dyn std::fmt::Display| {
            Failure::new(format!("cannot write {}", self.path.display()), reason)
        };
        if found != current.text {
            let reason =
                "it has changes that are neither applied nor in the new text; add them, or undo them";
            return Err(failed(&reason));
        }
        replace(&self.path, &found, text).map_err(|error| failed(&error))
    }
}
