//! Encoding of message fields: in sequence, little endian.

use crate::DecodeError;

/// Reads the fields of a message. All methods fail with [`DecodeError`].
#[derive(Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Decoder<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder { bytes, offset: 0 }
    }

    /// Returns an error at the current offset.
    pub fn malformed(&self, what: &'static str) -> DecodeError {
        DecodeError::new(format!("{what} at byte {}", self.offset))
    }

    /// Reads an integer.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.array(what).map(u16::from_le_bytes)
    }

    /// Reads an integer.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// Reads an integer.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads a 64-bit integer that must fit into `T`.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn number<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, DecodeError> {
        let start = self.offset;
        T::try_from(self.u64(what)?).map_err(|_| DecodeError::new(format!("{what} at byte {start}")))
    }

    /// Reads an optional 64-bit integer.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn optional_number(&mut self, what: &'static str) -> Result<Option<u64>, DecodeError> {
        let start = self.offset;
        let [is_some] = self.array(what)?;
        match (is_some, self.u64(what)?) {
            (0, 0) => Ok(None),
            (1, value) => Ok(Some(value)),
            _ => Err(DecodeError::new(format!("{what} at byte {start}"))),
        }
    }

    /// Reads up to eight flags from one byte, starting at its lowest bit.
    ///
    /// # Errors
    /// [`DecodeError`], also if another bit is set.
    pub fn flags<const COUNT: usize>(&mut self, what: &'static str) -> Result<[bool; COUNT], DecodeError> {
        let start = self.offset;
        let [byte] = self.array(what)?;
        match u32::from(byte) >> COUNT {
            0 => Ok(std::array::from_fn(|at| byte >> at & 1 == 1)),
            _ => Err(DecodeError::new(format!("{what} at byte {start}"))),
        }
    }

    /// Reads an optional integer.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn optional(&mut self, what: &'static str) -> Result<Option<u32>, DecodeError> {
        Ok(Some(self.u32(what)?).filter(|value| *value != NONE))
    }

    /// Reads bytes with a length prefix.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn bytes(&mut self, what: &'static str, max_bytes: usize) -> Result<Vec<u8>, DecodeError> {
        let start = self.offset;
        let count = usize::from(self.u16(what)?);
        if count > max_bytes {
            return Err(DecodeError::new(format!("{what} at byte {start}")));
        }
        Ok(self.take(what, count)?.to_vec())
    }

    /// Reads UTF-8 text with a length prefix.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn text(&mut self, what: &'static str, max_bytes: usize) -> Result<String, DecodeError> {
        let start = self.offset;
        String::from_utf8(self.bytes(what, max_bytes)?)
            .map_err(|_| DecodeError::new(format!("{what} at byte {start}")))
    }

    /// Checks that the message ends here.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn end(self) -> Result<(), DecodeError> {
        match self.offset == self.bytes.len() {
            true => Ok(()),
            false => Err(self.malformed("excess bytes")),
        }
    }

    fn take(&mut self, what: &'static str, count: usize) -> Result<&'a [u8], DecodeError> {
        let bytes = self.bytes[self.offset..].get(..count).ok_or_else(|| self.malformed(what))?;
        self.offset += count;
        Ok(bytes)
    }

    /// Reads a fixed number of bytes.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn array<const COUNT: usize>(&mut self, what: &'static str) -> Result<[u8; COUNT], DecodeError> {
        Ok(self.take(what, COUNT)?.try_into().expect("COUNT bytes"))
    }
}

/// Writes the fields of a message.
#[derive(Debug, Default)]
pub struct Encoder(Vec<u8>);

impl Encoder {
    /// Returns the message.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Writes an integer.
    pub fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    /// Writes an integer.
    pub fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    /// Writes an integer.
    pub fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// Writes an optional 64-bit integer.
    pub fn optional_number(&mut self, value: Option<u64>) {
        self.0.push(value.is_some().into());
        self.u64(value.unwrap_or(0));
    }

    /// Writes up to eight flags.
    pub fn flags<const COUNT: usize>(&mut self, flags: [bool; COUNT]) {
        self.0.push(flags.iter().rev().fold(0, |byte, flag| byte << 1 | u8::from(*flag)));
    }

    /// Writes a fixed number of bytes.
    pub fn array<const COUNT: usize>(&mut self, bytes: &[u8; COUNT]) {
        self.0.extend(bytes);
    }

    /// Writes an optional integer.
    pub fn optional(&mut self, value: Option<u32>) {
        self.u32(value.unwrap_or(NONE));
    }

    /// Writes bytes with a length prefix.
    ///
    /// # Panics
    /// If there are more than `max_bytes`.
    pub fn bytes(&mut self, bytes: &[u8], max_bytes: usize) {
        assert!(bytes.len() <= max_bytes, "{} bytes in a field of {max_bytes}", bytes.len());
        self.u16(bytes.len() as u16);
        self.0.extend(bytes);
    }

    /// Writes text with a length prefix, truncated to `max_bytes` between characters.
    pub fn text(&mut self, text: &str, max_bytes: usize) {
        let fits = (0..=max_bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        self.bytes(&text.as_bytes()[..fits.unwrap_or(0)], max_bytes);
    }
}

/// Encoding of a missing integer.
const NONE: u32 = u32::MAX;
