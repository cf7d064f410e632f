//! The configuration file of a running target.
//!
//! Invariant: `Current::text` is the text that was applied last, and the file has it unless somebody has edited the file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use isolane_config::{Config, Effect, ReplaceError, Replacement, diff, edit};
use isolane_target::TargetPort;
use isolane_volumes::Kinds;

use super::auth::LiveKeys;
use super::from_file;
use super::handover::ConfigTexts;
use super::state::State;
use crate::config_file;
use crate::failure::Failure;
use crate::locks::try_lock;

/// A configuration file, and what the target has of it.
pub struct LiveConfig {
    path: PathBuf,
    /// Access without authentication from other machines is rejected.
    strict: bool,
    /// Keys of hosts.
    pub keys: Arc<LiveKeys>,
    /// The state that outlives the target, if it has a directory for it.
    pub state: Option<State>,
    current: Mutex<Current>,
}

/// The configuration of the target at present.
pub struct Current {
    /// Its text in the file.
    pub text: String,
    /// What the target does, also by changes that are not in the file.
    pub running: Config,
    /// Whether it has changes that are not in the text.
    pub is_changed_at_runtime: bool,
    /// The same, but as each object was when the target began to serve it.
    pub started: Config,
}

impl LiveConfig {
    /// `current` is what the target has of the file.
    pub fn new(path: &Path, strict: bool, current: Current, keys: Arc<LiveKeys>) -> LiveConfig {
        LiveConfig { path: path.to_owned(), strict, keys, state: None, current: Mutex::new(current) }
    }

    /// Opens the state that outlives the target, if it has a directory for it, and gives the ports their IDs. Returns the
    /// first generation of the discovery log.
    pub fn open_state(
        &mut self,
        inherited: Option<File>,
        ports: &mut [TargetPort],
        kinds: &Kinds,
    ) -> Result<Option<u64>, Failure> {
        let current = self.current.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Another directory waits for a restart.
        let Some(directory) = current.served(kinds)?.server.state else { return Ok(None) };
        let is_resumed = inherited.is_some();
        let state = State::open(directory.as_path(), inherited)?;
        let generation = state.start(&current.running, is_resumed)?;
        state.number(ports);
        self.state = Some(state);
        Ok(Some(generation))
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the present configuration. It changes only while this is held.
    pub fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the same, or `None` during a change.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Current>> {
        try_lock(&self.current)
    }

    /// Returns the name of the setting with the addresses of the target.
    pub fn listen_setting(&self) -> String {
        format!("listen of a [[port]] in {}", self.path.display())
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

    /// Writes a new text next to the file, unless the file has it, so that little can fail later.
    ///
    /// # Errors
    /// Those of [`LiveConfig::write`].
    pub fn prepare(&self, current: &Current, text: &str) -> Result<Option<Replacement>, Failure> {
        let Some(_) = self.text_to_replace(current, text)? else { return Ok(None) };
        Replacement::prepare(&self.path, text).map(Some).map_err(|error| self.not_written(&error))
    }

    /// Puts a text that was prepared in the place of the file, unless the file has it.
    ///
    /// # Errors
    /// If the file has changes that are in neither text, or cannot be written.
    pub fn write(&self, current: &Current, text: &str, prepared: Option<Replacement>) -> Result<(), Failure> {
        let Some(found) = self.text_to_replace(current, text)? else { return Ok(()) };
        let prepared = prepared.map_or_else(|| Replacement::prepare(&self.path, text), Ok);
        prepared.and_then(|new| new.replace(&found)).map_err(|error| self.not_written(&error))
    }

    /// Returns the text of the file, or `None` if it is the new one.
    fn text_to_replace(&self, current: &Current, text: &str) -> Result<Option<String>, Failure> {
        let found = self.read()?;
        if found == text {
            return Ok(None);
        }
        if found != current.text {
            let reason =
                "it has changes that are neither applied nor in the new text; add them, or undo them";
            return Err(Failure::new(format!("cannot write {}", self.path.display()), reason));
        }
        Ok(Some(found))
    }

    fn not_written(&self, error: &ReplaceError) -> Failure {
        Failure::new(format!("cannot write {}", self.path.display()), error)
            .with_hint("let the user of the target write there, or change only the target, with `isolane ctl` and --runtime")
    }
}

impl Current {
    /// Returns the configuration of a target that starts with this text.
    pub fn new(text: String, config: Config) -> Current {
        Current { text, running: config.clone(), is_changed_at_runtime: false, started: config }
    }

    /// Returns the configuration that the program before has passed on.
    pub fn from_texts(path: &Path, texts: ConfigTexts) -> Result<Current, Failure> {
        let ConfigTexts { text, running, started } = texts;
        let parse = |text: &str| config_file::parse(path, text);
        let (config, started) = (parse(&text)?, parse(&started)?);
        let is_changed_at_runtime = config.to_toml() != running;
        let running = if is_changed_at_runtime { parse(&running)? } else { config };
        Ok(Current { text, running, is_changed_at_runtime, started })
    }

    /// Returns the same for another program.
    ///
    /// # Errors
    /// Those of [`Current::served`].
    pub fn to_texts(&self, kinds: &Kinds) -> Result<ConfigTexts, Failure> {
        // Objects of the start name others that are gone; only their keys for a restart matter.
        let started = self.served(kinds)?.to_toml();
        Ok(ConfigTexts { text: self.text.clone(), running: self.running.to_toml(), started })
    }

    /// Returns the configuration in effect: what waits for a restart of the target is as it was.
    ///
    /// # Errors
    /// If both do not go together.
    pub fn served(&self, kinds: &Kinds) -> Result<Config, Failure> {
        let later = diff(&self.running, &self.started).into_iter();
        let later = later.filter(|change| change.effect == Effect::Restart);
        let edits: Vec<_> = later.map(|change| (change.object, change.edit)).collect();
        if edits.is_empty() {
            return Ok(self.running.clone());
        }
        let edited = edit(&self.running.to_toml(), &edits, "the present configuration", kinds);
        edited.map(|(_, config)| config).map_err(Failure::from_error)
    }
}
