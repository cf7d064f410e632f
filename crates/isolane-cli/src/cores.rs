//! Lists of cores.

use isolane_verbs::ProgressMode;

use crate::failure::{Context, Failure};

/// Returns the cores of this process.
pub fn usable() -> Result<Vec<usize>, Failure> {
    isolane_reactor::cpu::allowed().context("cannot read the allowed cores")
}

/// Returns the requested cores if this process may use them.
pub fn checked(requested: &[usize]) -> Result<Vec<usize>, Failure> {
    let usable = usable()?;
    for core in requested {
        if !usable.contains(core) {
            return Err(Failure::new(
                format!("cannot use core {core}"),
                "it is not allowed for this process",
            )
            .with_hint(format!("choose from {usable:?}")));
        }
    }
    Ok(requested.to_vec())
}

/// Checks the core of a dedicated thread of the verbs.
pub fn check_progress(progress: ProgressMode) -> Result<(), Failure> {
    match progress {
        ProgressMode::Polling => Ok(()),
        ProgressMode::Dedicated { core } => checked(&[core]).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use isolane_host::Cores;

    use super::*;

    #[test]
    fn names_unusable_cores() {
        let failure = checked(&[100_000]).unwrap_err();
        assert!(failure.to_string().contains("core 100000"), "{failure}");
    }

    #[test]
    fn parses_numbers_and_ranges() {
        let parse_cores = |text: &str| text.parse::<Cores>().map_err(|error| error.to_string());
        assert_eq!(parse_cores("0-2,8").unwrap().as_slice(), [0, 1, 2, 8]);
        assert!(parse_cores("0,1-3,2").unwrap_err().contains("core 2 is given twice"));
        assert!(parse_cores("first").unwrap_err().contains("write a list as 0,1 or 0-3,8"));
    }
}
