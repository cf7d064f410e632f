//! Lists of cores on the command line.

use crate::failure::{Context, Failure};

/// One of them.
pub fn parse_core(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "it is no core; write their numbers, as in 0,1".into())
}

/// The cores that this process may use.
pub fn usable() -> Result<Vec<usize>, Failure> {
    isolane_reactor::core::usable().context("cannot find out which cores may be used")
}

/// Those that were asked for, each once and usable.
pub fn checked(asked: &[usize]) -> Result<Vec<usize>, Failure> {
    let usable = usable()?;
    for (at, core) in asked.iter().enumerate() {
        if !usable.contains(core) {
            return Err(Failure::new(format!("cannot use core {core}"), "this process may not run there")
                .remedy(format!("choose from {usable:?}")));
        }
        if asked[..at].contains(core) {
            return Err(Failure::new(format!("core {core} is given twice"), "one reactor runs on a core")
                .remedy("name every core once"));
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
    fn a_core_is_given_once() {
        let core = usable().unwrap()[0];
        let failure = checked(&[core, core]).unwrap_err();
        assert!(failure.to_string().contains("twice"), "{failure}");
    }
}
