//! The clock of one core, as far as the kernel lets a program choose it (cpufreq).
//!
//! Where the governor `userspace` can be had the clock is set; elsewhere a ceiling is, under which the
//! present governor goes on. Invariant: what was there before is there again when this is dropped.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A core whose clock follows the load that it is told.
#[derive(Debug)]
pub struct Frequency {
    directory: PathBuf,
    /// The file that the clock is written to.
    setting: &'static str,
    khz_min: u64,
    khz_max: u64,
    current_khz: u64,
    /// Files and what stood in them.
    before: Vec<(&'static str, String)>,
}

/// Why the clock cannot be chosen.
#[derive(Debug, thiserror::Error)]
pub enum FrequencyError {
    /// No driver, or a machine that keeps its clocks to itself.
    #[error("this machine has no clocks to choose (there is no {0})")]
    Absent(String),
    /// No permission.
    #[error("{path} cannot be written: {error}; run as root, or leave the clock to the kernel")]
    Refused {
        /// The file.
        path: String,
        /// The kernel's answer.
        error: io::Error,
    },
}

impl Frequency {
    /// Takes over the clock of a core.
    ///
    /// # Errors
    /// When there is nothing to choose, or this process may not.
    pub fn open(core: usize) -> Result<Frequency, FrequencyError> {
        Frequency::open_at(Path::new(&format!("/sys/devices/system/cpu/cpu{core}/cpufreq")))
    }

    fn open_at(directory: &Path) -> Result<Frequency, FrequencyError> {
        let number = |name| read(directory, name).and_then(|text| text.parse().ok());
        let absent = || FrequencyError::Absent(directory.display().to_string());
        let khz_min = number("cpuinfo_min_freq").ok_or_else(absent)?;
        let khz_max = number("cpuinfo_max_freq").ok_or_else(absent)?;
        let mut frequency = Frequency {
            directory: directory.to_owned(),
            setting: CEILING,
            khz_min,
            khz_max,
            current_khz: khz_max,
            before: Vec::new(),
        };
        frequency.take_over()?;
        Ok(frequency)
    }

    fn take_over(&mut self) -> Result<(), FrequencyError> {
        let governors = read(&self.directory, "scaling_available_governors").unwrap_or_default();
        if governors.split_whitespace().any(|name| name == USERSPACE) {
            self.replace(GOVERNOR, USERSPACE)?;
            self.setting = SPEED;
            return self.write(SPEED, &self.khz_max.to_string());
        }
        let khz_max = self.khz_max.to_string();
        self.replace(CEILING, &khz_max)
    }

    /// Chooses a clock at which the work of late, `busy` of the time at the present one, leaves some time
    /// free.
    ///
    /// # Errors
    /// The clock stays as it is.
    pub fn follow(&mut self, busy: f64) -> Result<(), FrequencyError> {
        let khz = wanted_khz(busy, self.current_khz, self.khz_min, self.khz_max);
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
                log::warn!("the clock is not as it was: {error}");
            }
        }
    }
}

fn read(directory: &Path, name: &str) -> Option<String> {
    fs::read_to_string(directory.join(name)).ok().map(|text| text.trim().to_owned())
}

/// Whole steps, so that a load that is nearly the same changes nothing; all there is for a core that has no
/// time left.
fn wanted_khz(busy: f64, current: u64, min: u64, max: u64) -> u64 {
    if busy >= FULL {
        return max;
    }
    let wanted = busy * current as f64 / AIM;
    ((wanted / STEP_KHZ as f64).ceil() as u64 * STEP_KHZ).clamp(min, max)
}

/// With more than this a core gets the highest clock.
const FULL: f64 = 0.9;
/// The share of the time that is to be busy.
const AIM: f64 = 0.7;
const STEP_KHZ: u64 = 100_000;
const GOVERNOR: &str = "scaling_governor";
const USERSPACE: &str = "userspace";
const SPEED: &str = "scaling_setspeed";
const CEILING: &str = "scaling_max_freq";

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory as cpufreq makes it, with these governors.
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

    fn told(directory: &tempfile::TempDir, name: &str) -> String {
        read(directory.path(), name).expect("a file")
    }

    #[test]
    fn the_clock_follows_the_load_and_is_left_as_it_was() {
        let directory = cpufreq("userspace powersave");
        let mut frequency = Frequency::open_at(directory.path()).expect("ours");
        assert_eq!(
            (told(&directory, GOVERNOR), told(&directory, SPEED)),
            ("userspace".into(), "3600000".into())
        );
        frequency.follow(0.1).expect("set");
        assert_eq!(told(&directory, SPEED), "800000");
        frequency.follow(0.95).expect("set");
        assert_eq!(told(&directory, SPEED), "3600000");
        drop(frequency);
        assert_eq!(told(&directory, GOVERNOR), "powersave");
    }

    #[test]
    fn without_that_governor_the_ceiling_follows() {
        let directory = cpufreq("performance powersave");
        let mut frequency = Frequency::open_at(directory.path()).expect("ours");
        frequency.follow(0.35).expect("set");
        assert_eq!(told(&directory, CEILING), "1800000");
        drop(frequency);
        assert_eq!(
            (told(&directory, CEILING), told(&directory, GOVERNOR)),
            ("3000000".into(), "powersave".into())
        );
    }

    #[test]
    fn a_machine_without_clocks_to_choose_says_so() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = Frequency::open_at(directory.path()).expect_err("nothing there").to_string();
        assert!(error.contains("no clocks to choose"), "{error}");
    }

    #[test]
    fn a_steady_load_finds_a_clock_and_keeps_it() {
        for demand_khz in (50_000..3_600_000u64).step_by(37_000) {
            let mut khz = 3_600_000;
            let busy = |khz: u64| (demand_khz as f64 / khz as f64).min(1.0);
            (0..20).for_each(|_| khz = wanted_khz(busy(khz), khz, 800_000, 3_600_000));
            assert_eq!(wanted_khz(busy(khz), khz, 800_000, 3_600_000), khz);
            assert!(busy(khz) <= FULL || khz == 3_600_000, "{demand_khz} of {khz}");
        }
    }
}
