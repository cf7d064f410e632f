//! Fields of a line, separated by spaces.

use std::str::SplitAsciiWhitespace;

use super::read_error::Malformed;

/// The fields of one line that are not read yet.
pub(super) struct Fields<'a> {
    fields: SplitAsciiWhitespace<'a>,
    index: usize,
}

impl<'a> Fields<'a> {
    /// Splits a line, counted from 0.
    pub(super) fn new(index: usize, line: &'a str) -> Self {
        Fields { fields: line.split_ascii_whitespace(), index }
    }

    /// Returns the next field.
    pub(super) fn word(&mut self, expected: &'static str) -> Result<&'a str, Malformed> {
        self.fields.next().ok_or(self.malformed(expected))
    }

    /// Returns the next field as a decimal number.
    pub(super) fn number<T: std::str::FromStr>(&mut self, expected: &'static str) -> Result<T, Malformed> {
        self.word(expected)?.parse().map_err(|_| self.malformed(expected))
    }

    /// Returns the next field as a hexadecimal number.
    pub(super) fn hexadecimal<T: TryFrom<u128>>(&mut self, expected: &'static str) -> Result<T, Malformed> {
        let number = u128::from_str_radix(self.word(expected)?, 16).ok();
        number.and_then(|number| T::try_from(number).ok()).ok_or(self.malformed(expected))
    }

    /// Skips fields.
    pub(super) fn skip(&mut self, count: usize, expected: &'static str) -> Result<(), Malformed> {
        (0..count).try_for_each(|_| self.word(expected).map(drop))
    }

    /// Returns the error of this line.
    pub(super) fn malformed(&self, expected: &'static str) -> Malformed {
        Malformed::at(self.index, expected)
    }
}
