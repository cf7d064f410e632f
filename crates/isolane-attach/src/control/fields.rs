//! Fields of a message, one after the other, little endian.

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a control message is malformed: {what} at byte {offset}")]
pub struct Malformed {
    /// The field.
    pub what: &'static str,
    /// Bytes before it.
    pub offset: usize,
}

/// Takes a message apart.
#[derive(Debug)]
pub struct Source<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Source<'a> {
    /// From its first byte on.
    pub fn new(bytes: &'a [u8]) -> Source<'a> {
        Source { bytes, offset: 0 }
    }

    /// The next field cannot be, or the last was not one.
    pub fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { what, offset: self.offset }
    }

    /// The next number.
    ///
    /// # Errors
    /// [`Malformed`], as of all that take something.
    pub fn u16(&mut self, what: &'static str) -> Result<u16, Malformed> {
        self.array(what).map(u16::from_le_bytes)
    }

    /// The next number.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// The next number.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn u64(&mut self, what: &'static str) -> Result<u64, Malformed> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// The next number, of 64 bits, which has to fit.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn number<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, Malformed> {
        let start = self.offset;
        T::try_from(self.u64(what)?).map_err(|_| Malformed { what, offset: start })
    }

    /// A number of 64 bits that may be missing.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn optional_number(&mut self, what: &'static str) -> Result<Option<u64>, Malformed> {
        let start = self.offset;
        let [is_there] = self.array(what)?;
        match (is_there, self.u64(what)?) {
            (0, 0) => Ok(None),
            (1, value) => Ok(Some(value)),
            _ => Err(Malformed { what, offset: start }),
        }
    }

    /// Flags of one byte, at most eight, the first in its lowest bit.
    ///
    /// # Errors
    /// [`Malformed`], also if another bit is set.
    pub fn flags<const COUNT: usize>(&mut self, what: &'static str) -> Result<[bool; COUNT], Malformed> {
        let start = self.offset;
        let [byte] = self.array(what)?;
        match u32::from(byte) >> COUNT {
            0 => Ok(std::array::from_fn(|at| byte >> at & 1 == 1)),
            _ => Err(Malformed { what, offset: start }),
        }
    }

    /// A number that may be missing.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn optional(&mut self, what: &'static str) -> Result<Option<u32>, Malformed> {
        Ok(Some(self.u32(what)?).filter(|value| *value != NONE))
    }

    /// Bytes whose count stands before them.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn bytes(&mut self, what: &'static str, bytes_max: usize) -> Result<Vec<u8>, Malformed> {
        let start = self.offset;
        let count = usize::from(self.u16(what)?);
        if count > bytes_max {
            return Err(Malformed { what, offset: start });
        }
        Ok(self.take(what, count)?.to_vec())
    }

    /// A text whose bytes are counted before them.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn text(&mut self, what: &'static str, bytes_max: usize) -> Result<String, Malformed> {
        let start = self.offset;
        String::from_utf8(self.bytes(what, bytes_max)?).map_err(|_| Malformed { what, offset: start })
    }

    /// Nothing may be left.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn end(self) -> Result<(), Malformed> {
        match self.offset == self.bytes.len() {
            true => Ok(()),
            false => Err(self.malformed("more than there should be")),
        }
    }

    fn take(&mut self, what: &'static str, count: usize) -> Result<&'a [u8], Malformed> {
        let rest = &self.bytes[self.offset..];
        let taken = rest.get(..count).ok_or(self.malformed(what))?;
        self.offset += count;
        Ok(taken)
    }

    /// So many bytes.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn array<const COUNT: usize>(&mut self, what: &'static str) -> Result<[u8; COUNT], Malformed> {
        let taken = self.take(what, COUNT)?;
        Ok(taken.try_into().expect("as many as were taken"))
    }
}

/// Puts a message together.
#[derive(Debug, Default)]
pub struct Sink(Vec<u8>);

impl Sink {
    /// The message.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Puts a number.
    pub fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    /// Puts a number.
    pub fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    /// Puts a number.
    pub fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    /// Puts a number of 64 bits that may be missing.
    pub fn optional_number(&mut self, value: Option<u64>) {
        self.0.push(value.is_some().into());
        self.u64(value.unwrap_or(0));
    }

    /// Puts flags, at most eight.
    pub fn flags<const COUNT: usize>(&mut self, flags: [bool; COUNT]) {
        self.0.push(flags.iter().rev().fold(0, |byte, flag| byte << 1 | u8::from(*flag)));
    }

    /// Puts bytes whose count is known.
    pub fn array<const COUNT: usize>(&mut self, bytes: &[u8; COUNT]) {
        self.0.extend(bytes);
    }

    /// Puts a number that may be missing.
    pub fn optional(&mut self, value: Option<u32>) {
        self.u32(value.unwrap_or(NONE));
    }

    /// Puts bytes, and their count before them.
    ///
    /// # Panics
    /// If there are more than `bytes_max`, which is a bug of the caller.
    pub fn bytes(&mut self, bytes: &[u8], bytes_max: usize) {
        assert!(bytes.len() <= bytes_max, "{} bytes in a field of {bytes_max}", bytes.len());
        self.u16(bytes.len() as u16);
        self.0.extend(bytes);
    }

    /// As much of a text as fits, cut between letters.
    pub fn text(&mut self, text: &str, bytes_max: usize) {
        let fits = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        self.bytes(&text.as_bytes()[..fits.unwrap_or(0)], bytes_max);
    }
}

/// Stands for a number that is missing.
const NONE: u32 = u32::MAX;
