//! Send queue of one connection: headers in one byte buffer, with references to payload between
//! them.
//!
//! Invariant: `headers[headers_sent..]` is exactly the concatenation of the unsent headers before each
//! of `items` and the `tail_len` bytes after the last, so adjacent headers are sent as one slice.

use std::collections::VecDeque;

use isolane_memory::{Payload, ZeroCopySend};

use crate::plan::TransmitPlan;
use crate::stall::Watermark;

/// A queue of bytes to send.
#[derive(Default)]
pub struct SendQueue {
    headers: Vec<u8>,
    headers_sent: usize,
    items: VecDeque<Item>,
    /// Length of the headers after the last item.
    tail_len: usize,
    /// Sent bytes of the front item's payload.
    payload_sent: usize,
    pending_bytes: usize,
    queued_bytes: u64,
}

/// A payload, which is not empty, and the length of the headers before it.
struct Item {
    header_len: usize,
    payload: Payload,
}

impl SendQueue {
    /// Appends a header and the payload after it. Most headers have the length `COMMON_LEN`, a constant with
    /// which the compiler copies without a call.
    #[inline(always)]
    pub fn push<const COMMON_LEN: usize>(&mut self, header: &[u8], payload: Option<Payload>) {
        match <&[u8; COMMON_LEN]>::try_from(header) {
            Ok(header) => self.headers.extend_from_slice(header),
            Err(_) => self.extend_headers(header),
        }
        self.tail_len += header.len();
        let mut len = header.len();
        if let Some(payload) = payload.filter(|payload| !payload.is_empty()) {
            len += payload.len();
            self.items.push_back(Item { header_len: std::mem::take(&mut self.tail_len), payload });
        }
        self.pending_bytes += len;
        self.queued_bytes += len as u64;
    }

    /// Appends `len` bytes, which `write` writes over zeroes, as a header.
    pub fn push_with(&mut self, len: usize, write: impl FnOnce(&mut [u8])) {
        let start = self.headers.len();
        self.headers.resize(start + len, 0);
        write(&mut self.headers[start..]);
        self.tail_len += len;
        self.pending_bytes += len;
        self.queued_bytes += len as u64;
    }

    /// Not inlined, so that the compiler keeps the copy of constant length.
    #[inline(never)]
    fn extend_headers(&mut self, header: &[u8]) {
        self.headers.extend_from_slice(header);
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.pending_bytes == 0
    }

    /// Number of queued bytes.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Total length of the payloads that are not completely sent, which hold memory.
    pub fn payload_bytes(&self) -> usize {
        self.items.iter().map(|item| item.payload.len()).sum()
    }

    /// Number of queued header bytes, which are not references to payload.
    pub fn pending_header_bytes(&self) -> usize {
        self.headers.len() - self.headers_sent
    }

    /// Total bytes queued: the position of the next byte to queue.
    pub fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Total bytes sent.
    pub fn sent_bytes(&self) -> u64 {
        self.queued_bytes - self.pending_bytes as u64
    }

    /// Progress of sending: queued and sent bytes.
    pub fn bytes(&self) -> Watermark {
        Watermark { expected: self.queued_bytes, done: self.sent_bytes() }
    }

    /// Drops all queued bytes, because the connection has ended.
    pub fn clear(&mut self) {
        self.queued_bytes = self.sent_bytes();
        self.pending_bytes = 0;
        self.payload_sent = 0;
        self.items.clear();
        self.headers.clear();
        self.headers_sent = 0;
        self.tail_len = 0;
    }

    /// Copies the queued bytes. `None` if memory of a payload is not mapped.
    pub fn try_to_vec(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.pending_bytes);
        let mut headers = &self.headers[self.headers_sent..];
        let mut skip = self.payload_sent;
        for Item { header_len, payload } in &self.items {
            let (header, tail) = headers.split_at(*header_len);
            bytes.extend_from_slice(header);
            bytes.extend(payload.slice(skip, payload.len() - skip).try_to_vec()?);
            (headers, skip) = (tail, 0);
        }
        bytes.extend_from_slice(headers);
        Some(bytes)
    }

    /// Fills a plan with the next bytes.
    pub fn fill_plan<'a>(&'a self, plan: &mut TransmitPlan<'a>) {
        let mut headers = &self.headers[self.headers_sent..];
        let mut skip = self.payload_sent;
        for item in &self.items {
            let (header, tail) = headers.split_at(item.header_len);
            if !header.is_empty() && !plan.push(header) {
                return;
            }
            let is_taken = match item.payload.as_slice() {
                Some(slice) => plan.push(&slice[skip..]),
                None => {
                    let mut slices = item.payload.io_slices(skip, item.payload.len() - skip);
                    slices.all(|slice| plan.push_io_slice(slice))
                }
            };
            if !is_taken {
                return;
            }
            (headers, skip) = (tail, 0);
        }
        if !headers.is_empty() {
            plan.push(headers);
        }
    }

    /// Removes `n` sent bytes, and passes completely sent payload to `release`.
    pub fn advance(&mut self, n: usize, mut release: impl FnMut(Payload)) {
        assert!(n <= self.pending_bytes, "more bytes reported as sent than were planned");
        if n == self.pending_bytes {
            return self.advance_all(release);
        }
        self.pending_bytes -= n;
        let mut left = n;
        while let Some(item) = self.items.front_mut() {
            let header = left.min(item.header_len);
            item.header_len -= header;
            self.headers_sent += header;
            left -= header;
            let payload = left.min(item.payload.len() - self.payload_sent);
            self.payload_sent += payload;
            left -= payload;
            if item.header_len > 0 || self.payload_sent < item.payload.len() {
                break;
            }
            self.payload_sent = 0;
            if let Some(item) = self.items.pop_front() {
                release(item.payload);
            }
        }
        self.tail_len -= left;
        self.headers_sent += left;
        self.compact();
    }

    /// Removes `n` bytes of a zero-copy send, and moves their memory to `send`, because the kernel
    /// still reads it.
    pub fn advance_zerocopy(&mut self, n: usize, send: &mut ZeroCopySend) {
        // The unsent headers move to the buffer of the last completed send.
        send.headers.clear();
        send.headers.extend_from_slice(&self.headers[self.headers_sent..]);
        std::mem::swap(&mut send.headers, &mut self.headers);
        self.headers_sent = 0;
        send.bytes = n;
        self.advance(n, |payload| send.payloads.push(payload));
        if self.payload_sent > 0
            && let Some(item) = self.items.front()
        {
            send.payloads.push(item.payload.clone());
        }
    }

    /// Releases everything, after a complete send.
    #[inline]
    fn advance_all(&mut self, mut release: impl FnMut(Payload)) {
        self.pending_bytes = 0;
        self.payload_sent = 0;
        self.headers.clear();
        self.headers_sent = 0;
        self.tail_len = 0;
        self.items.drain(..).for_each(|item| release(item.payload));
    }

    /// Releases the space of sent headers: immediately if no header is unsent, otherwise above a
    /// threshold, if that moves no more bytes than it releases.
    fn compact(&mut self) {
        if self.headers_sent == self.headers.len() {
            self.headers.clear();
            self.headers_sent = 0;
        } else if self.headers_sent >= COMPACT_BYTES.max(self.headers.len() / 2) {
            self.headers.drain(..self.headers_sent);
            self.headers_sent = 0;
        }
    }
}

/// Number of sent header bytes that triggers a move of the unsent ones.
const COMPACT_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::MAX_TRANSMIT_SLICES;

    fn planned(output: &SendQueue) -> TransmitPlan<'_> {
        let mut plan = TransmitPlan::new();
        output.fill_plan(&mut plan);
        plan
    }

    fn sent(output: &SendQueue) -> Vec<u8> {
        planned(output).iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn sends_in_order_after_partial_writes() {
        for step in [1, 2, 3, 5, 7, 100] {
            let mut output = SendQueue::default();
            output.push::<24>(b"ab", None);
            output.push_with(2, |slot| slot.copy_from_slice(b"cd"));
            output.push::<24>(b"", Some(Payload::from(b"PAYLOAD".to_vec())));
            output.push::<24>(b"", Some(Payload::from(b"more".to_vec())));
            output.push::<24>(b"ef", None);
            let mut all: Vec<u8> = Vec::new();
            while !output.is_empty() {
                let n = step.min(output.pending_bytes());
                assert_eq!(output.try_to_vec(), Some(sent(&output)));
                all.extend(&sent(&output)[..n]);
                output.advance(n, drop);
            }
            assert_eq!(all, b"abcdPAYLOADmoreef");
            assert_eq!((output.queued_bytes(), output.sent_bytes(), output.headers.len()), (17, 17, 0));
        }
    }

    #[test]
    fn headers_that_wait_are_told_apart_from_payload() {
        let mut output = SendQueue::default();
        output.push::<24>(b"header", None);
        output.push::<24>(b"", Some(Payload::from(b"data".to_vec())));
        output.push::<24>(b"csum", None);
        assert_eq!((output.pending_bytes(), output.pending_header_bytes()), (6 + 4 + 4, 6 + 4));
        output.advance(8, drop);
        assert_eq!((output.pending_bytes(), output.pending_header_bytes()), (2 + 4, 4));
        assert_eq!(output.payload_bytes(), 4);
        output.advance(6, drop);
        assert_eq!(output.pending_header_bytes(), 0);
    }

    #[test]
    fn releases_sent_payload() {
        let mut output = SendQueue::default();
        output.push::<24>(b"header", None);
        output.push::<24>(b"", Some(Payload::from(b"data".to_vec())));
        let mut released = 0;
        output.advance(9, |_| released += 1);
        assert_eq!(released, 0);
        output.advance(1, |payload| released += payload.len());
        assert_eq!(released, 4);
    }

    /// Where the slices of the plan are in memory: what the kernel reads.
    fn places(output: &SendQueue) -> Vec<(*const u8, usize)> {
        planned(output).iter().map(|slice| (slice.as_ptr(), slice.len())).collect()
    }

    /// The bytes at an address that `send` retains; `None` if it does not retain all of them.
    fn retained(send: &ZeroCopySend, (start, len): (*const u8, usize)) -> Option<&[u8]> {
        let payloads = send.payloads.iter().flat_map(|payload| payload.slices(0, payload.len()));
        let mut memory = std::iter::once(&send.headers[..]).chain(payloads);
        memory.find_map(|slice| {
            let from = (start as usize).checked_sub(slice.as_ptr() as usize)?;
            slice.get(from..from + len)
        })
    }

    #[test]
    fn keeps_memory_of_zerocopy_sends() {
        for step in [1, 2, 3, 7, 9, 100] {
            let mut output = SendQueue::default();
            output.push::<24>(b"abcd", None);
            output.push::<24>(b"", Some(Payload::from(b"PAYLOAD".to_vec())));
            output.push::<24>(b"ef", None);
            output.push::<24>(b"", Some(Payload::from(b"more".to_vec())));
            output.push::<24>(b"csum", None);
            let (mut all, mut sends): (Vec<u8>, Vec<_>) = (Vec::new(), Vec::new());
            while !output.is_empty() {
                let n = step.min(output.pending_bytes());
                let (bytes, places) = (sent(&output)[..n].to_vec(), places(&output));
                all.extend(&bytes);
                let mut send = ZeroCopySend::default();
                output.advance_zerocopy(n, &mut send);
                assert_eq!(send.bytes, n);
                if all.len() < 12 {
                    output.push::<24>(b"+", None);
                }
                sends.push((send, bytes, places));
            }
            assert_eq!(all[..17], *b"abcdPAYLOADefmore");
            // The memory that the kernel reads is unchanged by later pushes and sends.
            for (send, bytes, places) in &sends {
                let mut left = &bytes[..];
                for (start, len) in places {
                    let (taken, tail) = left.split_at(left.len().min(*len));
                    assert!(
                        taken.is_empty() || retained(send, (*start, taken.len())) == Some(taken),
                        "step {step}"
                    );
                    left = tail;
                }
                assert!(left.is_empty());
            }
        }
    }

    #[test]
    fn reuses_header_memory_after_zerocopy() {
        let mut output = SendQueue::default();
        let mut send = ZeroCopySend { headers: Vec::with_capacity(4096), ..ZeroCopySend::default() };
        let spare = send.headers.as_ptr();
        output.push::<24>(b"header", None);
        output.advance_zerocopy(6, &mut send);
        assert_eq!(send.headers, b"header");
        output.push::<24>(b"next", None);
        assert_eq!(planned(&output)[0].as_ptr(), spare);
    }

    #[test]
    fn bounds_slices_of_plan() {
        let mut output = SendQueue::default();
        for _ in 0..200 {
            output.push::<24>(b"h", None);
            output.push::<24>(b"", Some(Payload::from(b"p".to_vec())));
        }
        assert_eq!((planned(&output).len(), planned(&output).bytes()), (MAX_TRANSMIT_SLICES, 256));
        output.advance(256, drop);
        assert_eq!(planned(&output).len(), 144);
    }

    #[test]
    fn reclaims_sent_headers() {
        let mut output = SendQueue::default();
        for _ in 0..10_000 {
            output.push::<24>(&[1; 24], None);
            output.push::<24>(&[2; 24], None);
            output.advance(24 + 23, drop);
            output.push::<24>(&[3; 1], None);
            output.advance(1, drop);
            output.advance(1, drop);
        }
        assert!(output.headers.capacity() < 4 * COMPACT_BYTES);
    }
}
