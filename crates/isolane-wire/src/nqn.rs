//! NVMe qualified names (Base 1.4 §7.9).

use core::fmt;

use crate::Field;

/// A qualified name: 1 to 223 bytes of UTF-8 without control characters.
///
/// The form `nqn.yyyy-mm.domain:…` is not required, because real peers use other names (the
/// kernel's target accepts any); see [`Self::has_standard_format`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn {
    /// The name, padded with NULs.
    bytes: [u8; Self::MAX_LEN],
    len: u8,
}

/// Error of an invalid name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NqnError {
    /// Empty.
    Empty,
    /// Longer than 223 bytes, or without NUL in its field.
    TooLong,
    /// Not UTF-8, or with a control character.
    NotText,
}

impl Nqn {
    /// Maximum length in bytes (Base 1.4 §7.9).
    pub const MAX_LEN: usize = 223;

    /// Length in bytes of the field that holds a name, padded with NULs.
    pub const FIELD_LEN: usize = 256;

    /// Well-known name of the discovery subsystem (Fabrics 1.1 §1.5.2).
    pub const DISCOVERY: &'static str = "nqn.2014-08.org.nvmexpress.discovery";

    /// Prefix of the name of a host with a UUID (Base 1.4 §7.9).
    pub const UUID_PREFIX: &'static str = "nqn.2014-08.org.nvmexpress:uuid:";

    /// Parses a name.
    pub fn new(text: &str) -> Result<Self, NqnError> {
        match text.len() {
            0 => return Err(NqnError::Empty),
            1..=Self::MAX_LEN => {}
            _ => return Err(NqnError::TooLong),
        }
        if text.chars().any(char::is_control) {
            return Err(NqnError::NotText);
        }
        let mut bytes = [0; Self::MAX_LEN];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self { bytes, len: text.len() as u8 })
    }

    /// Returns the well-known discovery name.
    pub fn discovery() -> Self {
        let mut bytes = [0; Self::MAX_LEN];
        bytes[..Self::DISCOVERY.len()].copy_from_slice(Self::DISCOVERY.as_bytes());
        Self { bytes, len: Self::DISCOVERY.len() as u8 }
    }

    /// Decodes a field of a command's data up to its first NUL, which is required.
    pub fn decode(field: &[u8; Self::FIELD_LEN]) -> Result<Self, NqnError> {
        let end = field.iter().position(|&byte| byte == 0).ok_or(NqnError::TooLong)?;
        Self::new(core::str::from_utf8(&field[..end]).map_err(|_| NqnError::NotText)?)
    }

    /// Encodes the name as a field.
    pub fn encode(&self) -> [u8; Self::FIELD_LEN] {
        let mut field = [0; Self::FIELD_LEN];
        field[..Self::MAX_LEN].copy_from_slice(&self.bytes);
        field
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }

    /// Whether this is the well-known discovery name.
    pub fn is_discovery(&self) -> bool {
        self.as_str() == Self::DISCOVERY
    }

    /// Whether the name has the form `nqn.yyyy-mm.domain[:…]`.
    pub fn has_standard_format(&self) -> bool {
        let Some((date, rest)) = self.as_str().strip_prefix("nqn.").and_then(|name| name.split_once('.'))
        else {
            return false;
        };
        let domain = rest.split(':').next().unwrap_or_default();
        is_year_and_month(date) && !domain.is_empty()
    }
}

fn is_year_and_month(date: &str) -> bool {
    let Some((year, month)) = date.split_once('-') else {
        return false;
    };
    let is_number =
        |text: &str, digits| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number(year, 4) && is_number(month, 2) && ("01"..="12").contains(&month)
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl core::str::FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Self, NqnError> {
        Self::new(text)
    }
}

impl fmt::Display for NqnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the NQN is empty; give a name such as nqn.2014-08.org.example:disk",
            Self::TooLong => "the NQN is longer than 223 bytes; shorten it",
            Self::NotText => "the NQN has control characters or is not UTF-8; remove them",
        })
    }
}

impl core::error::Error for NqnError {}

/// The 256-byte field of a name as received, not validated, so that the decoder of a command can
/// report the invalid field.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NqnField(pub [u8; Nqn::FIELD_LEN]);

impl NqnField {
    /// Empty field.
    pub const EMPTY: Self = Self([0; Nqn::FIELD_LEN]);

    /// Validates the name in the field.
    pub fn parse(&self) -> Result<Nqn, NqnError> {
        Nqn::decode(&self.0)
    }
}

impl From<Nqn> for NqnField {
    fn from(nqn: Nqn) -> Self {
        Self(nqn.encode())
    }
}

impl fmt::Debug for NqnField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parse() {
            Ok(nqn) => write!(f, "{nqn:?}"),
            Err(error) => write!(f, "({error})"),
        }
    }
}

impl Field for NqnField {
    const LEN: usize = Nqn::FIELD_LEN;

    fn read(bytes: &[u8]) -> Self {
        Self(Field::read(bytes))
    }

    fn write(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::{String, ToString};

    #[test]
    fn round_trips_name_field() {
        let nqn = Nqn::new("nqn.2014-08.org.example:disk").unwrap();
        let field = nqn.encode();
        assert_eq!(&field[..4], b"nqn.");
        assert!(field[28..].iter().all(|&byte| byte == 0));
        assert_eq!(Nqn::decode(&field), Ok(nqn));
        assert_eq!(NqnField::from(nqn).parse(), Ok(nqn));
        assert_eq!(nqn.to_string(), "nqn.2014-08.org.example:disk");
    }

    #[test]
    fn length_is_limited_to_223_bytes() {
        let longest: String = core::iter::repeat_n('n', 223).collect();
        assert_eq!(Nqn::new(&longest).unwrap().as_str(), longest);
        assert_eq!(Nqn::decode(&Nqn::new(&longest).unwrap().encode()).unwrap().as_str(), longest);
        assert_eq!(Nqn::new(&(longest + "n")), Err(NqnError::TooLong));
        assert_eq!(Nqn::new(""), Err(NqnError::Empty));
    }

    #[test]
    fn rejects_field_without_nul_or_with_garbage() {
        assert_eq!(Nqn::decode(&[b'n'; 256]), Err(NqnError::TooLong));
        assert_eq!(Nqn::decode(&[0; 256]), Err(NqnError::Empty));
        let mut field = [0; 256];
        field[0] = 0xff;
        assert_eq!(Nqn::decode(&field), Err(NqnError::NotText));
        assert_eq!(Nqn::new("nqn\n"), Err(NqnError::NotText));
    }

    #[test]
    fn bytes_behind_the_nul_do_not_matter() {
        let mut field = Nqn::discovery().encode();
        field[200] = 7;
        assert!(Nqn::decode(&field).unwrap().is_discovery());
    }

    #[test]
    fn detects_standard_format() {
        for name in [Nqn::DISCOVERY, "nqn.2016-06.io.spdk:cnode1", "nqn.2014-08.org.nvmexpress:uuid:1-2"] {
            assert!(Nqn::new(name).unwrap().has_standard_format(), "{name}");
        }
        for name in ["testnqn", "nqn.", "nqn.2016-06", "nqn.2016-13.io", "nqn.16-06.io", "nqn.2016-06.:a"] {
            assert!(!Nqn::new(name).unwrap().has_standard_format(), "{name}");
        }
    }
}
