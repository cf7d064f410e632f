//! Received bytes that are not parsed yet: a partial header, and a range of the overflow buffer.
//!
//! Invariant: unread bytes are either all in the driver's overflow or, after
//! [`InputBuffer::defer`], all in `deferred`. Without unread bytes, any overflow is valid,
//! including an empty one.

use std::ops::Range;

/// The unread input of one connection, whose headers have up to `MAX_HEADER` bytes.
#[derive(Debug)]
pub struct InputBuffer<const MAX_HEADER: usize> {
    header: [u8; MAX_HEADER],
    header_len: usize,
    unread: Range<usize>,
    deferred: Vec<u8>,
    received_bytes: u64,
    /// Total bytes before the unread ones.
    consumed_bytes: u64,
}

impl<const MAX_HEADER: usize> Default for InputBuffer<MAX_HEADER> {
    fn default() -> Self {
        InputBuffer {
            header: [0; MAX_HEADER],
            header_len: 0,
            unread: 0..0,
            deferred: Vec::new(),
            received_bytes: 0,
            consumed_bytes: 0,
        }
    }
}

impl<const MAX_HEADER: usize> InputBuffer<MAX_HEADER> {
    /// Records `n` received bytes. The first `direct` are in their destination already; the range
    /// `unread` of the overflow comes next.
    pub fn received(&mut self, n: usize, direct: usize, unread: Range<usize>) {
        debug_assert!(self.unread.is_empty(), "bytes received before the last ones were consumed");
        self.received_bytes += n as u64;
        self.consumed_bytes += direct as u64;
        self.set_unread(unread);
    }

    /// Skips `n` bytes: the unread ones, and data after them that is in its destination already. The
    /// range `unread` of the overflow comes next.
    #[inline]
    pub fn skip(&mut self, n: usize, unread: Range<usize>) {
        debug_assert!(self.unread.len() <= n && self.deferred.is_empty(), "bytes were left behind");
        self.consumed_bytes += n as u64;
        self.set_unread(unread);
    }

    /// An empty range is stored as `0..0`, which is valid for an empty overflow.
    #[inline]
    fn set_unread(&mut self, unread: Range<usize>) {
        self.unread = if unread.is_empty() { 0..0 } else { unread };
    }

    /// Replaces the unread bytes.
    pub fn replace_unread(&mut self, bytes: Vec<u8>) {
        self.unread = 0..bytes.len();
        self.deferred = bytes;
    }

    /// Total bytes before the unread ones.
    pub fn consumed_bytes(&self) -> u64 {
        self.consumed_bytes
    }

    /// Total bytes received.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// The unread bytes.
    #[inline]
    pub fn unread<'a>(&'a self, overflow: &'a [u8]) -> &'a [u8] {
        let source = if self.deferred.is_empty() { overflow } else { &self.deferred };
        &source[self.unread.clone()]
    }

    /// Where the unread bytes start.
    #[inline]
    pub fn unread_start(&self) -> usize {
        self.unread.start
    }

    /// Number of unread bytes.
    #[inline]
    pub fn unread_len(&self) -> usize {
        self.unread.len()
    }

    /// Marks the first `n` unread bytes as read.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        self.unread.start += n;
        self.consumed_bytes += n as u64;
        if self.unread.is_empty() {
            self.unread = 0..0;
            self.end_deferred();
        }
    }

    /// Frees the deferred bytes, all of which were read.
    #[inline]
    fn end_deferred(&mut self) {
        #[cold]
        fn free(bytes: &mut Vec<u8>) {
            *bytes = Vec::new();
        }
        if !self.deferred.is_empty() {
            free(&mut self.deferred);
        }
    }

    /// Collects header bytes until there are `len`. Returns `false` if more must arrive.
    pub fn collect_header(&mut self, overflow: &[u8], len: usize) -> bool {
        let missing = len.saturating_sub(self.header_len);
        let source = if self.deferred.is_empty() { overflow } else { &self.deferred };
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
    pub fn header(&self) -> &[u8] {
        &self.header[..self.header_len]
    }

    /// Takes a header of `len` bytes. Returns how many of them are still unread: none of a collected one.
    #[inline]
    pub fn take_header(&mut self, len: usize) -> usize {
        match std::mem::take(&mut self.header_len) {
            0 => len,
            _ => 0,
        }
    }

    /// Whether a part of a header was collected.
    pub fn is_mid_header(&self) -> bool {
        self.header_len > 0
    }

    /// Copies the unread bytes out of the overflow, so that the driver can reuse it.
    pub fn defer(&mut self, overflow: &[u8]) {
        if self.deferred.is_empty() && !self.unread.is_empty() {
            self.deferred = overflow[self.unread.clone()].to_vec();
            self.unread = 0..self.deferred.len();
        }
    }

    /// Whether bytes of an earlier overflow are deferred.
    pub fn is_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Discards everything unread.
    pub fn discard(&mut self) {
        self.unread = 0..0;
        self.deferred = Vec::new();
        self.header_len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collects_header_from_several_receives() {
        let mut input = InputBuffer::<8>::default();
        input.received(3, 0, 0..3);
        assert!(!input.collect_header(b"abc", 5));
        assert!(input.unread(b"abc").is_empty() && input.is_mid_header());
        input.received(4, 0, 0..4);
        assert!(input.collect_header(b"defg", 5));
        assert_eq!((input.header(), input.unread(b"defg")), (&b"abcde"[..], &b"fg"[..]));
    }

    #[test]
    fn needs_no_overflow_without_unread_bytes() {
        let mut input = InputBuffer::<8>::default();
        input.received(8, 0, 4..4);
        assert_eq!(input.unread(b""), b"");
        input.skip(8, 16..16);
        assert_eq!(input.unread(b""), b"");
    }

    #[test]
    fn keeps_deferred_bytes() {
        let mut input = InputBuffer::<8>::default();
        input.received(4, 0, 0..4);
        input.consume(1);
        input.defer(b"abcd");
        input.defer(b"other bytes");
        assert!(input.is_deferred());
        assert_eq!(input.unread(b""), b"bcd");
        input.consume(3);
        assert!(!input.is_deferred());
    }
}
