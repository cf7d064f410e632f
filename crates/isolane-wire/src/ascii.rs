//! ASCII strings of fixed length, padded with spaces (Base 1.4 §1.5: serial number, model, addresses).

use core::fmt;

use crate::Field;

/// An ASCII string of up to `N` bytes, left justified and padded with spaces.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ascii<const N: usize>([u8; N]);

impl<const N: usize> Ascii<N> {
    /// Creates a padded string; replaces unprintable bytes by `_` and truncates.
    pub fn lossy(text: &str) -> Self {
        let mut bytes = [b' '; N];
        for (place, byte) in bytes.iter_mut().zip(text.bytes()) {
            *place = if (0x20..=0x7e).contains(&byte) { byte } else { b'_' };
        }
        Self(bytes)
    }

    /// Returns the bytes on the wire.
    pub fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// Returns the string up to the first NUL and without padding; `None` if it is not ASCII.
    pub fn as_str(&self) -> Option<&str> {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(N);
        let text = core::str::from_utf8(&self.0[..end]).ok()?;
        text.is_ascii().then(|| text.trim_end_matches(' '))
    }
}

/// Empty string: spaces only.
impl<const N: usize> Default for Ascii<N> {
    fn default() -> Self {
        Self([b' '; N])
    }
}

impl<const N: usize> Field for Ascii<N> {
    const LEN: usize = N;

    fn read(bytes: &[u8]) -> Self {
        Self(Field::read(bytes))
    }

    fn write(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0);
    }
}

/// Formats the text, with `?` for every byte that is not printable ASCII.
impl<const N: usize> fmt::Display for Ascii<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().rposition(|&byte| byte != b' ' && byte != 0).map_or(0, |last| last + 1);
        for &byte in &self.0[..end] {
            let shown = if (0x20..=0x7e).contains(&byte) { byte as char } else { '?' };
            fmt::Write::write_char(f, shown)?;
        }
        Ok(())
    }
}

impl<const N: usize> fmt::Debug for Ascii<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn short_strings_are_padded_with_spaces() {
        let text = Ascii::<6>::lossy("abc");
        assert_eq!(text.as_bytes(), b"abc   ");
        assert_eq!(text.as_str(), Some("abc"));
    }

    #[test]
    fn long_and_foreign_strings_are_cut_and_replaced() {
        assert_eq!(Ascii::<3>::lossy("abcd").as_bytes(), b"abc");
        assert_eq!(Ascii::<3>::lossy("ü").as_bytes(), b"__ ");
        assert_eq!(Ascii::<3>::lossy("a\nbc").as_bytes(), b"a_b");
    }

    #[test]
    fn formats_garbage_safely() {
        let text = Ascii::<4>::read(&[0xff, b'a', 0x1b, b' ']);
        assert_eq!(text.as_str(), None);
        assert_eq!(text.to_string(), "?a?");
    }

    #[test]
    fn nul_padding_is_understood_too() {
        assert_eq!(Ascii::<5>::read(b"ab\0\0\0").as_str(), Some("ab"));
    }
}
