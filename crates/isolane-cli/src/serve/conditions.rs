//! Conditions of volumes: at the end of the target, and for SIGUSR1.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use isolane_target::OfflineVolume;
use isolane_volume::spec::VolumeSpec;
use isolane_volume::{Condition, OpenError, Volume};
use isolane_volumes::Kinds;
use serde_json::json;

use crate::failure::Failure;
use crate::memory;

/// The served volumes, until they are closed, and the skipped ones.
#[derive(Default)]
pub struct Conditions {
    volumes: Mutex<Vec<Weak<dyn Volume>>>,
    skipped: Mutex<Vec<Condition>>,
}

impl Conditions {
    /// Adds a volume that is served.
    pub fn add(&self, volume: &Arc<dyn Volume>) {
        let mut volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        volumes.retain(|volume| volume.strong_count() > 0);
        volumes.push(Arc::downgrade(volume));
    }

    fn served(&self) -> Vec<Arc<dyn Volume>> {
        let volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        volumes.iter().filter_map(Weak::upgrade).collect()
    }

    /// Checks the size of memory volumes beside those that are open, without those that they replace.
    ///
    /// The caller must hold the lock of all changes from here until it has added the volumes: that of the file, or that of
    /// the only subsystem of a target without a file. Otherwise, changes that both pass could exceed the memory together.
    ///
    /// # Errors
    /// Those of [`memory::check`].
    pub fn check_memory(
        &self,
        kinds: &Kinds,
        specs: &[VolumeSpec],
        replaced: &[VolumeSpec],
    ) -> Result<(), Failure> {
        let open = self.served().iter().map(|volume| memory::size(&**volume)).fold(0, u64::saturating_add);
        memory::check(kinds, specs, open.saturating_sub(memory::requested(kinds, replaced)?))
    }

    /// Adds a volume that cannot be opened, and logs the reason.
    pub fn skip(&self, nsid: u32, error: OpenError) {
        let OpenError { name, reason, remedy, .. } = error;
        let text = format!(
            "namespace {nsid} is missing: {reason}; {remedy}, then run `isolane ctl namespace online {nsid}`"
        );
        log::error!("{name}: {text}");
        self.skipped().push(Condition { name, text, is_failure: true });
    }

    /// Adds a volume that the program before could not open, with its reason, unless an operator has closed it. Returns the
    /// volume for the target.
    pub fn keep_missing(&self, nsid: u32, spec: &VolumeSpec, reason: Option<String>) -> OfflineVolume {
        let name = spec.name();
        if let Some(reason) = &reason {
            let text = format!("namespace {nsid} is missing: {reason}");
            self.skipped().push(Condition { name: name.clone(), text, is_failure: true });
        }
        OfflineVolume { nsid, name, reason: reason.unwrap_or_default() }
    }

    /// A volume that could not be opened is served now. The target has still not served it for a time.
    pub fn find(&self, nsid: u32, name: &str) {
        for skipped in self.skipped().iter_mut().filter(|skipped| skipped.name == name) {
            skipped.text = format!("namespace {nsid} was missing at the start");
        }
    }

    fn skipped(&self) -> MutexGuard<'_, Vec<Condition>> {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses to serve nothing, if there are volumes.
    pub fn check_any(&self) -> Result<(), Failure> {
        if !self.served().is_empty() || self.skipped().is_empty() {
            return Ok(());
        }
        Err(Failure::new("cannot serve", "no volume can be opened").with_hint("the log has the reasons"))
    }

    /// Returns the conditions of all volumes.
    fn all(&self) -> impl Iterator<Item = Condition> {
        let served = self.served().into_iter().flat_map(|volume| volume.conditions());
        self.skipped().clone().into_iter().chain(served)
    }

    /// Logs the failures. Returns their number.
    pub fn log_failures(&self) -> usize {
        let failures = self.all().filter(|condition| condition.is_failure);
        failures.inspect(|Condition { name, text, .. }| log::error!("{name}: {text}")).count()
    }

    /// Returns one line for each condition.
    pub fn to_text(&self) -> String {
        self.all().map(|Condition { name, text, .. }| format!("{name}: {text}\n")).collect()
    }

    /// Returns the same as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        let to_json = |Condition { name, text, is_failure }| json!({ "name": name, "text": text, "failure": is_failure });
        self.all().map(to_json).collect()
    }
}

/// Returns the failure of a target whose volumes have `count` failures.
pub fn reject_failures(count: usize) -> Result<(), Failure> {
    match count {
        0 => Ok(()),
        _ => Err(Failure::new(
            "not all volumes were served, or keep their data",
            format!("{count} have a problem"),
        )
        .with_hint("the log names them")),
    }
}
