//! Clock frequency control of one core (cpufreq).
//!
//! Sets the clock through the governor `userspace` if available, else a ceiling for the current
//! governor.
//!
//! Invariant: dropping [`Frequency`] restores the previous settings.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A core whose clock follows its reported load.
#[derive(Debug)]
pub struct Frequency {
    directory: PathBuf,
    /// File that sets the clock.
    setting: &'static str,
    min_khz: u64,
    max_khz: u64,
    current_khz: u64,
    /// Files and their previous contents.
    before: Vec<(&'static str, String)>,
}

/// Error of clock control.
#[derive(Debug, thiserror::Error)]
pub enum FrequencyError {
    /// No cpufreq driver.
    #[error("cpufreq not available: no {0}; leave the clock to the kernel")]
    Absent(String),
    /// No permission.
    #[error("cannot write {path}: {error}; run as root, or leave the clock to the kernel")]
    Refused {
        /// The file.
        path: String,
        /// Error of the write.
        error: io::Error,
    },
}

impl Frequency {
    /// Takes control of the clock of a core.
    ///
    /// # Errors
    /// Fails without a cpufreq driver or permission.
    pub fn open(core: usize) -> Result<Frequency, FrequencyError> {
        Frequency::open_at(Path::new(&format!("/sys/devices/system/cpu/cpu{core}/cpufreq")))
    }

    fn open_at(directory: &Path) -> Result<Frequency, FrequencyError> {
        let number = |name| read(directory, name).and_then(|text| text.parse().ok());
        let absent = || FrequencyError::Absent(directory.display().to_string());
        let min_khz = number("cpuinfo_min_freq").ok_or_else(absent)?;
        let max_khz = number("cpuinfo_max_freq").ok_or_else(absent)?;
        let mut frequency = Frequency {
            directory: directory.to_owned(),
            setting: CEILING,
            min_khz,
            max_khz,
            current_khz: max_khz,
            before: Vec::new(),
        };
        frequency.take_control()?;
        Ok(frequency)
    }

    fn take_control(&mut self) -> Result<(), FrequencyError> {
        let governors = read(&self.directory, "scaling_available_governors").unwrap_or_default();
        if governors.split_whitespace().any(|name| name == USERSPACE) {
            self.replace(GOVERNOR, USERSPACE)?;
            self.setting = SPEED;
            return self.write(SPEED, &self.max_khz.to_string());
        }
        let max_khz = self.max_khz.to_string();
        self.replace(CEILING, &max_khz)
    }

    /// Sets a clock at which recent work, `busy` as a share of time at the current clock, reaches
    /// the target load.
    ///
    /// # Errors
    /// The write failed; the clock is unchanged.
    pub fn update(&mut self, busy: f64) -> Result<(), FrequencyError> {
        let khz = target_khz(busy, self.current_khz, self.min_khz, self.max_khz);
        if khz != self.current_khz {
            self.write(self.setting, &khz.to_string())?;
            self.current_khz = khz;
        }
        Ok(())
    }

    fn replace(&mut self, name: &'static str, value: &str) -> Result<(), FrequencyError> {
        let before = read(&self.directory, name).unwrap_or_default();
        self.write(name, value)?;
        self.before.push((name, before));
        Ok(())
    }

    fn write(&self, name: &str, value: &str) -> Result<(), FrequencyError> {
        let path = self.directory.join(name);
        fs::write(&path, value)
            .map_err(|error| FrequencyError::Refused { path: path.display().to_string(), error })
    }
}

impl Drop for Frequency {
    fn drop(&mut self) {
        for (name, value) in std::mem::take(&mut self.before) {
            if let Err(error) = self.write(name, &value) {
                log::warn!("cannot restore the clock: {error}");
            }
        }
    }
}

fn read(directory: &Path, name: &str) -> Option<String> {
    fs::read_to_string(directory.join(name)).ok().map(|text| text.trim().to_owned())
}

/// Rounds to steps, so that small load changes do not change the clock; returns the maximum for a
/// saturated core.
fn target_khz(busy: f64, current: u64, min: u64, max: u64) -> u64 {
    if busy >= SATURATED {
        return max;
    }
    let target = busy * current as f64 / TARGET_LOAD;
    ((target / STEP_KHZ as f64).ceil() as u64 * STEP_KHZ).clamp(min, max)
}

/// Load above which a core gets the highest clock.
const SATURATED: f64 = 0.9;
/// Load that the clock is chosen for.
const TARGET_LOAD: f64 = 0.7;
const STEP_KHZ: u64 = 100_000;
const GOVERNOR: &str = "scaling_governor";
const USERSPACE: &str = "userspace";
const SPEED: &str = "scaling_setspeed";
const CEILING: &str = "scaling_max_freq";

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a cpufreq directory with these governors.
    fn cpufreq(governors: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text) in [
            ("cpuinfo_min_freq", "800000\n"),
            ("cpuinfo_max_freq", "3600000\n"),
            ("scaling_available_governors", governors),
            (GOVERNOR, "powersave\n"),
            (SPEED, "<unsupported>\n"),
            (CEILING, "3000000\n"),
        ] {
            fs::write(directory.path().join(name), text).expect("written");
        }
        directory
    }

    fn content(directory: &tempfile::TempDir, name: &str) -> String {
        read(directory.path(), name).expect("a file")
    }

    #[test]
    fn sets_clock_by_load_and_restores_it() {
        let directory = cpufreq("userspace powersave");
        let mut frequency = Frequency::open_at(directory.path()).expect("ours");
        assert_eq!(
            (content(&directory, GOVERNOR), content(&directory, SPEED)),
            ("userspace".into(), "3600000".into())
        );
        frequency.update(0.1).expect("set");
        assert_eq!(content(&directory, SPEED), "800000");
        frequency.update(0.95).expect("set");
        assert_eq!(content(&directory, SPEED), "3600000");
        drop(frequency);
        assert_eq!(content(&directory, GOVERNOR), "powersave");
    }

    #[test]
    fn sets_ceiling_without_userspace_governor() {
        let directory = cpufreq("performance powersave");
        let mut frequency = Frequency::open_at(directory.path()).expect("ours");
        frequency.update(0.35).expect("set");
        assert_eq!(content(&directory, CEILING), "1800000");
        drop(frequency);
        assert_eq!(
            (content(&directory, CEILING), content(&directory, GOVERNOR)),
            ("3000000".into(), "powersave".into())
        );
    }

    #[test]
    fn reports_missing_cpufreq() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = Frequency::open_at(directory.path()).expect_err("nothing there").to_string();
        assert!(error.contains("cpufreq not available"), "{error}");
    }

    #[test]
    fn steady_load_keeps_its_clock() {
        for demand_khz in (50_000..3_600_000u64).step_by(37_000) {
            let mut khz = 3_600_000;
            let busy = |khz: u64| (demand_khz as f64 / khz as f64).min(1.0);
            (0..20).for_each(|_| khz = target_khz(busy(khz), khz, 800_000, 3_600_000));
            assert_eq!(target_khz(busy(khz), khz, 800_000, 3_600_000), khz);
            assert!(busy(khz) <= SATURATED || khz == 3_600_000, "{demand_khz} of {khz}");
        }
    }
}
