//! List of cores for a volume's lanes: `0,1` or `0-3,8`.
//!
//! Invariant: no core is listed twice, and every core ID is one that a kernel can have.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use isolane_reactor::cpu::MAX_CORES;

/// Cores of this machine, in the order in which they get lanes. Empty: the volume has one thread, which is
/// not pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores(Vec<usize>);

/// Error in a list of cores.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoresError {
    /// Something that is neither a number nor a range.
    #[error("{0:?} is not a core: write a list as 0,1 or 0-3,8")]
    Number(String),
    /// A range that ends before it begins.
    #[error("{0:?} is not a range of cores: write the lower number first")]
    Range(String),
    /// A number that no core has.
    #[error("core {0} does not exist: core IDs are below {MAX_CORES}")]
    TooLarge(usize),
    /// A core that is named more than once.
    #[error("core {0} is given twice: name every core once")]
    Twice(usize),
}

impl Cores {
    /// These cores.
    ///
    /// # Errors
    /// Which of them cannot be meant.
    pub fn new(cores: impl IntoIterator<Item = usize>) -> Result<Cores, CoresError> {
        let mut list = Vec::new();
        for core in cores {
            if core >= MAX_CORES {
                return Err(CoresError::TooLarge(core));
            }
            if list.contains(&core) {
                return Err(CoresError::Twice(core));
            }
            list.push(core);
        }
        Ok(Cores(list))
    }

    /// In the order given.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// Whether none is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Cores {
    type Err = CoresError;

    fn from_str(text: &str) -> Result<Cores, CoresError> {
        let mut cores = Vec::new();
        for item in text.split(',') {
            let (first, last) = parse_item(item)?;
            // Before it is counted through: a range may be long, the list is not.
            if last >= MAX_CORES {
                return Err(CoresError::TooLarge(last));
            }
            cores.extend(first..=last);
        }
        Cores::new(cores)
    }
}

impl Display for Cores {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let cores: Vec<String> = self.0.iter().map(usize::to_string).collect();
        formatter.write_str(&cores.join(","))
    }
}

/// The first and the last core of a number or a range.
fn parse_item(item: &str) -> Result<(usize, usize), CoresError> {
    let number = |text: &str| text.parse().map_err(|_| CoresError::Number(item.to_owned()));
    let (first, last) = item.split_once('-').unwrap_or((item, item));
    match (number(first)?, number(last)?) {
        (first, last) if first <= last => Ok((first, last)),
        _ => Err(CoresError::Range(item.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Cores, CoresError> {
        text.parse()
    }

    #[test]
    fn numbers_and_ranges_keep_their_order() {
        assert_eq!(parse("3,0-1,8").unwrap().as_slice(), [3, 0, 1, 8]);
        assert_eq!(parse("0-2").unwrap().to_string(), "0,1,2");
        assert_eq!(parse("5").unwrap(), Cores::new([5]).unwrap());
    }

    #[test]
    fn every_mistake_has_its_own_error() {
        for text in ["", "0,", "a", "-1", "1-", "0 1", "99999999999999999999"] {
            assert!(matches!(parse(text), Err(CoresError::Number(_))), "{text}");
        }
        assert!(matches!(parse("3-1"), Err(CoresError::Range(_))));
        assert!(matches!(parse("0-4000000000"), Err(CoresError::TooLarge(4_000_000_000))));
        assert!(matches!(parse("0-3,2"), Err(CoresError::Twice(2))));
        assert!(matches!(Cores::new([1, 1]), Err(CoresError::Twice(1))));
        assert!(matches!(Cores::new([MAX_CORES]), Err(CoresError::TooLarge(MAX_CORES))));
    }
}
