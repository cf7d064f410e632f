//! Lists of cores on the command line.

use isolane_host::Cores;

use crate::failure::{Context, Failure};

/// Parses numbers and ranges: `0,1` or `0-3,8`.
pub fn parse_cores(text: &str) -> Result<Cores, String> {
    text.parse::<Cores>().map_err(|error| error.to_string())
}

/// The cores that this process may use.
pub fn usable() -> Result<Vec<usize>, Failure> {
    isolane_reactor::core::usable().context("cannot find out which cores may be used")
}

/// Those that were asked for, if they are usable.
pub fn checked(asked: &[usize]) -> Result<Vec<usize>, Failure> {
    let usable = usable()?;
    for core in asked {
        if !usable.contains(core) {
            return Err(Failure::new(format!("cannot use core {core}"), "this process may not run there")
                .remedy(format!("choose from {usable:?}")));
        }
    }
    Ok(asked.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_is_not_there_is_named() {
        let failure = checked(&[100_000]).unwrap_err();
        assert!(failure.to_string().contains("core 100000"), "{failure}");
    }

    #[test]
    fn cores_are_numbers_and_ranges_each_given_once() {
        assert_eq!(parse_cores("0-2,8").unwrap().as_slice(), [0, 1, 2, 8]);
        assert!(parse_cores("0,1-3,2").unwrap_err().contains("core 2 is given twice"));
        assert!(parse_cores("first").unwrap_err().contains("write a list as 0,1 or 0-3,8"));
    }
}
