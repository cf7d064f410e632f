//! Configuration of the devices of programs that do not know this library, from their environment.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use super::DeviceConfig;
use crate::shared_key::SharedKey;
use crate::wire::Hello;

/// A variable of the environment has a wrong value.
#[derive(Debug, thiserror::Error)]
#[error("{name}={value}: {reason}")]
pub struct VariableError {
    name: &'static str,
    value: String,
    reason: String,
}

impl VariableError {
    fn new(name: &'static str, value: &str, reason: impl Display) -> VariableError {
        VariableError { name, value: value.into(), reason: reason.to_string() }
    }
}

impl DeviceConfig {
    /// Returns the configuration that the variables `ISOLANE_VERBS_SOCKET`, `_PROGRESS`, `_LANES`, `_CRC`, `_KEY`, and
    /// `_PORTS` name. Without a variable, or with an empty one, its field has its default value.
    ///
    /// # Errors
    /// [`VariableError`] names the variable and the remedy.
    pub fn from_environment() -> Result<DeviceConfig, VariableError> {
        let mut config = DeviceConfig::from_variables(|name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })?;
        config.key = SharedKey::of_program()?;
        Ok(config)
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<DeviceConfig, VariableError> {
        let mut config = DeviceConfig::default();
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        set(&mut config.socket, "ISOLANE_VERBS_SOCKET", variable)?;
        set(&mut config.progress, "ISOLANE_VERBS_PROGRESS", variable)?;
        if let Some(lanes) = variable(LANES) {
            let number = lanes.parse().ok().filter(|number| (1..=Hello::MAX_LANES).contains(number));
            config.lanes = number.ok_or_else(|| VariableError::new(LANES, &lanes, "write 1 to 8"))?;
        }
        if let Some(crc) = variable(CRC) {
            config.checksums = match crc.as_str() {
                "1" => true,
                "0" => false,
                _ => return Err(VariableError::new(CRC, &crc, "write 0 or 1")),
            };
        }
        if let Some(ports) = variable(PORTS) {
            let range =
                ports.split_once('-').and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
            let range = range.filter(|(low, high)| low <= high);
            let (low, high) = range.ok_or_else(|| VariableError::new(PORTS, &ports, "write LOW-HIGH"))?;
            config.ports = low..=high;
        }
        Ok(config)
    }
}

impl SharedKey {
    /// Reads the key as [`SharedKey::from_environment`], for a program that does not know this library.
    ///
    /// # Errors
    /// [`VariableError`] names the variable and the remedy.
    pub fn of_program() -> Result<Option<Arc<SharedKey>>, VariableError> {
        SharedKey::from_environment().map_err(|error| {
            let file = std::env::var_os(SharedKey::VARIABLE).unwrap_or_default();
            VariableError::new(SharedKey::VARIABLE, &file.to_string_lossy(), error)
        })
    }
}

fn set<T: FromStr<Err: Display>>(
    field: &mut T,
    name: &'static str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(), VariableError> {
    if let Some(value) = variable(name) {
        *field = value.parse().map_err(|reason: T::Err| VariableError::new(name, &value, reason))?;
    }
    Ok(())
}

const LANES: &str = "ISOLANE_VERBS_LANES";
const CRC: &str = "ISOLANE_VERBS_CRC";
const PORTS: &str = "ISOLANE_VERBS_PORTS";

#[cfg(test)]
mod tests {
    use super::super::ProgressMode;
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<DeviceConfig, String> {
        let value = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        };
        DeviceConfig::from_variables(value).map_err(|error| error.to_string())
    }

    #[test]
    fn reads_each_variable() {
        let empty =
            ["ISOLANE_VERBS_SOCKET", "ISOLANE_VERBS_PROGRESS", LANES, CRC, PORTS].map(|name| (name, ""));
        for none in [&[], &empty[..]] {
            let none = read(none).unwrap();
            assert_eq!((none.lanes, none.checksums, none.ports), (1, false, 0..=0));
        }
        let all =
            read(&[("ISOLANE_VERBS_PROGRESS", "thread:1"), (LANES, "8"), (CRC, "1"), (PORTS, "20000-20007")]);
        let all = all.unwrap();
        assert_eq!(all.progress, ProgressMode::Dedicated { core: 1 });
        assert_eq!((all.lanes, all.checksums, all.ports), (8, true, 20000..=20007));
    }

    #[test]
    fn names_the_variable_of_a_wrong_value() {
        for (name, value, expected) in [
            ("ISOLANE_VERBS_SOCKET", "x", "ISOLANE_VERBS_SOCKET=x: "),
            ("ISOLANE_VERBS_PROGRESS", "x", "ISOLANE_VERBS_PROGRESS=x: not a mode: write polling"),
            (LANES, "9", "ISOLANE_VERBS_LANES=9: write 1 to 8"),
            (CRC, "yes", "ISOLANE_VERBS_CRC=yes: write 0 or 1"),
            (PORTS, "20010-20000", "ISOLANE_VERBS_PORTS=20010-20000: write LOW-HIGH"),
            (PORTS, "5", "ISOLANE_VERBS_PORTS=5: write LOW-HIGH"),
            (PORTS, "1-99999", "ISOLANE_VERBS_PORTS=1-99999: write LOW-HIGH"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
