//! Bytes that have arrived and were not understood yet: the scratch of a cut header, and where in the
//! overflow the machine has got to.
//!
//! It does not know what a PDU is. Invariant: unread bytes are either all in the driver's overflow or, after
//! [`Inbox::defer`], all in `kept`; without any, every overflow will do, an empty one as well.

use std::ops::Range;

/// The longest header with its digest (ICReq: 128), and room for a TermReq (152).
pub(crate) const HEADER_MAX: usize = 160;

/// The unread input of one connection.
pub(crate) struct Inbox {
    header: [u8; HEADER_MAX],
    header_len: usize,
    unread: Range<usize>,
    kept: Vec<u8>,
    received_bytes: u64,
    /// Bytes from the start of the connection up to the unread ones.
    consumed_bytes: u64,
}

impl Inbox {
    pub(crate) fn new() -> Inbox {
        Inbox {
            header: [0; HEADER_MAX],
            header_len: 0,
            unread: 0..0,
            kept: Vec::new(),
            received_bytes: 0,
            consumed_bytes: 0,
        }
    }

    /// `n` bytes arrived, of which the first `direct` are in their place already; of the others, those in
    /// `unread` of the overflow come next.
    pub(crate) fn received(&mut self, n: usize, direct: usize, unread: Range<usize>) {
        debug_assert!(self.unread.is_empty(), "bytes received before the last ones were consumed");
        self.received_bytes += n as u64;
        self.consumed_bytes += direct as u64;
        self.set_unread(unread);
    }

    /// All unread bytes were read; `placed` more are in their place already, and then come those in `unread`
    /// of the overflow.
    pub(crate) fn skip(&mut self, placed: usize, unread: Range<usize>) {
        debug_assert!(self.unread.is_empty(), "bytes were left behind");
        self.pass(placed, unread);
    }

    /// All unread bytes are read, with those in their place `consumed` bytes; then come those in `unread` of
    /// the overflow.
    #[inline]
    pub(crate) fn pass(&mut self, consumed: usize, unread: Range<usize>) {
        debug_assert!(self.kept.is_empty(), "bytes were left behind");
        self.consumed_bytes += consumed as u64;
        self.set_unread(unread);
    }

    /// An empty range names no place in the overflow: it is looked up in an empty one as well.
    #[inline]
    fn set_unread(&mut self, unread: Range<usize>) {
        self.unread = if unread.is_empty() { 0..0 } else { unread };
    }

    /// These are the unread bytes.
    pub(crate) fn keep(&mut self, bytes: Vec<u8>) {
        self.unread = 0..bytes.len();
        self.kept = bytes;
    }

    /// Bytes from the start of the connection up to the unread ones.
    pub(crate) fn consumed_bytes(&self) -> u64 {
        self.consumed_bytes
    }

    /// Bytes ever received.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// The unread bytes.
    #[inline]
    pub(crate) fn unread<'a>(&'a self, overflow: &'a [u8]) -> &'a [u8] {
        let source = if self.kept.is_empty() { overflow } else { &self.kept };
        &source[self.unread.clone()]
    }

    /// The unread bytes, if they lie in the overflow and no header is cut.
    #[inline]
    pub(crate) fn untouched<'a>(&self, overflow: &'a [u8]) -> Option<&'a [u8]> {
        match self.header_len == 0 && self.kept.is_empty() {
            true => overflow.get(self.unread.clone()),
            false => None,
        }
    }

    /// How many they are.
    #[inline]
    pub(crate) fn unread_len(&self) -> usize {
        self.unread.len()
    }

    /// Marks the first `n` unread bytes as read.
    #[inline]
    pub(crate) fn consume(&mut self, n: usize) {
        self.unread.start += n;
        self.consumed_bytes += n as u64;
        if self.unread.is_empty() {
            self.unread = 0..0;
            if !self.kept.is_empty() {
                self.kept = Vec::new();
            }
        }
    }

    /// Collects header bytes until there are `want`; false when more must arrive.
    #[inline]
    pub(crate) fn gather(&mut self, overflow: &[u8], want: usize) -> bool {
        let missing = want.saturating_sub(self.header_len);
        let source = if self.kept.is_empty() { overflow } else { &self.kept };
        let available = &source[self.unread.clone()];
        let n = missing.min(available.len());
        self.header[self.header_len..][..n].copy_from_slice(&available[..n]);
        self.header_len += n;
        if n > 0 {
            self.consume(n);
        }
        n == missing
    }

    /// The collected header bytes.
    pub(crate) fn header(&self) -> &[u8] {
        &self.header[..self.header_len]
    }

    /// The header was acted on: the next one may be collected.
    pub(crate) fn clear_header(&mut self) {
        self.header_len = 0;
    }

    /// Whether a header is cut in the middle.
    pub(crate) fn is_mid_header(&self) -> bool {
        self.header_len > 0
    }

    /// Takes the unread bytes out of the overflow, which the driver wants for another connection.
    pub(crate) fn defer(&mut self, overflow: &[u8]) {
        if self.kept.is_empty() && !self.unread.is_empty() {
            self.kept = overflow[self.unread.clone()].to_vec();
            self.unread = 0..self.kept.len();
        }
    }

    /// Whether bytes are kept from an earlier overflow.
    pub(crate) fn is_deferred(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Forgets everything unread: nothing of it matters any more.
    pub(crate) fn discard(&mut self) {
        self.unread = 0..0;
        self.kept = Vec::new();
        self.header_len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_collected_from_several_receives() {
        let mut inbox = Inbox::new();
        inbox.received(3, 0, 0..3);
        assert!(!inbox.gather(b"abc", 5));
        assert!(inbox.unread(b"abc").is_empty() && inbox.is_mid_header());
        inbox.received(4, 0, 0..4);
        assert!(inbox.gather(b"defg", 5));
        assert_eq!((inbox.header(), inbox.unread(b"defg")), (&b"abcde"[..], &b"fg"[..]));
    }

    #[test]
    fn needs_no_overflow_without_unread_bytes() {
        let mut inbox = Inbox::new();
        inbox.received(8, 0, 4..4);
        assert_eq!(inbox.unread(b""), b"");
        inbox.pass(8, 16..16);
        assert_eq!(inbox.unread(b""), b"");
    }

    #[test]
    fn deferred_bytes_do_not_need_the_overflow_any_more() {
        let mut inbox = Inbox::new();
        inbox.received(4, 0, 0..4);
        inbox.consume(1);
        inbox.defer(b"abcd");
        inbox.defer(b"other bytes");
        assert!(inbox.is_deferred());
        assert_eq!(inbox.unread(b""), b"bcd");
        inbox.consume(3);
        assert!(!inbox.is_deferred());
    }
}
