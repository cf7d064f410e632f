//! Fields one after the other, little endian.

use isolane_wire::Nqn;

/// Puts fields together.
#[derive(Default)]
pub(super) struct Sink(pub Vec<u8>);

impl Sink {
    pub fn number(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub fn optional(&mut self, value: Option<u64>) {
        self.0.push(value.is_some().into());
        self.number(value.unwrap_or(0));
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    /// A text of at most 65,535 bytes.
    pub fn text(&mut self, text: &str) {
        debug_assert!(text.len() <= usize::from(u16::MAX));
        self.0.extend((text.len() as u16).to_le_bytes());
        self.0.extend(text.as_bytes());
    }

    pub fn flags<const N: usize>(&mut self, flags: [bool; N]) {
        self.0.push(flags.iter().rev().fold(0, |byte, flag| byte << 1 | u8::from(*flag)));
    }
}

/// Takes fields apart.
pub(super) struct Source<'a>(pub &'a [u8]);

impl Source<'_> {
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number that fits.
    pub fn small<T: TryFrom<u64>>(&mut self) -> Option<T> {
        T::try_from(self.number()?).ok()
    }

    pub fn optional(&mut self) -> Option<Option<u64>> {
        let [is_some] = self.array()?;
        let value = self.number()?;
        match (is_some, value) {
            (0, 0) => Some(None),
            (1, value) => Some(Some(value)),
            _ => None,
        }
    }

    pub fn text(&mut self) -> Option<String> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    pub fn nqn(&mut self) -> Option<Nqn> {
        Nqn::new(&self.text()?).ok()
    }

    pub fn flags<const N: usize>(&mut self) -> Option<[bool; N]> {
        let [byte] = self.array()?;
        (u32::from(byte) >> N == 0).then(|| std::array::from_fn(|at| byte >> at & 1 == 1))
    }

    /// Nothing may be left.
    pub fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}
