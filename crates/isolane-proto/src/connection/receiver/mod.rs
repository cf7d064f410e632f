//! The receiving half of a connection: splits the byte stream into headers and bodies.
//!
//! Used by both sides, which interpret the PDUs and name the memory for their data. `plan` builds
//! receive plans, `headers` reads PDU headers, `predicted` takes data that landed where it was predicted.

mod headers;
mod plan;
mod predicted;

use isolane_memory::Buffer;
use isolane_wire::pdu::{CapsuleCmd, CommonHeader};
use isolane_wire::{Direction, Framing};

use super::body::Body;
use super::header::Header;
use super::input::InputBuffer;
use super::predict::Predictor;
use super::stall::Watermark;

/// The receiving half of a connection.
pub(crate) struct Receiver {
    from: Direction,
    framing: Framing,
    input: InputBuffer,
    body: Body,
    predictor: Predictor,
    /// The last common header that was right, and what it said: most are followed by their like.
    last_common: [u8; CommonHeader::LEN],
    last_header: Option<Header>,
    /// Length of the last header in front of data, with its digest and padding.
    prefix: usize,
    /// Bytes of the running plan that go straight to their destination.
    planned_direct: usize,
    /// Counted down from [`headers::SHORT_IN_A_ROW`] with each PDU that has no long data.
    long_expected: u8,
    /// PDUs received whole.
    pdus: u64,
}

impl Receiver {
    /// A connection on which nothing has been received from `from`.
    pub(crate) fn new(from: Direction) -> Receiver {
        Receiver {
            from,
            framing: Framing::default(),
            input: InputBuffer::new(),
            body: Body::new(),
            predictor: Predictor::new(),
            last_common: [0; CommonHeader::LEN],
            last_header: None,
            prefix: 0,
            planned_direct: 0,
            long_expected: 0,
            pdus: 0,
        }
    }

    /// Applies the negotiated framing of this direction.
    pub(crate) fn set_framing(&mut self, framing: Framing) {
        self.framing = framing;
        self.last_header = None;
        self.body.set_digested(framing.data_digest);
    }

    /// The first `n` bytes of the plan have been filled.
    pub(crate) fn handle_received(&mut self, n: usize, destination: Option<&Buffer>) {
        let direct = n.min(self.planned_direct);
        self.planned_direct = 0;
        if direct > 0 {
            self.body.on_placed(direct, destination);
        }
        self.input.received(n, direct, self.predictor.received(n - direct));
    }

    /// Whether unparsed bytes remain, in the overflow or in predicted destinations.
    #[inline]
    pub(crate) fn has_unread(&self) -> bool {
        self.input.unread_len() > 0 || self.predictor.has_unverified()
    }

    /// Starts the body after `header`; its data belongs at `offset` of its destination.
    #[inline]
    pub(crate) fn start_body(&mut self, header: &Header, offset: usize) {
        self.body.start(header.layout, offset);
        self.prefix = header.len + header.layout.padding;
        let start = self.input.consumed_bytes() + header.layout.padding as u64;
        self.predictor.observe(start, header.layout.data_len);
    }

    /// Takes what has arrived of the running PDU; true when that is everything.
    #[inline]
    pub(crate) fn receive_body(&mut self, overflow: &[u8], destination: Option<&mut Buffer>) -> bool {
        if self.predictor.has_unverified() && self.body.data_left() > 0 {
            self.take_predicted(destination.as_deref());
            if self.body.is_whole() {
                self.pdus += 1;
                return true;
            }
        }
        let taken = self.body.take(self.input.unread(overflow), destination);
        self.input.consume(taken);
        self.pdus += u64::from(self.body.is_whole());
        self.body.is_whole()
    }

    /// Bytes from one capsule without data to the next.
    #[inline]
    pub(crate) fn capsule_len(&self) -> usize {
        CapsuleCmd::LEN + self.framing.header_digest_len()
    }

    /// Data bytes of the running PDU that are still to come.
    pub(crate) fn data_left(&self) -> usize {
        self.body.data_left()
    }

    /// Whether the data of the PDU that just ended is what the peer sent.
    pub(crate) fn is_digest_ok(&self) -> bool {
        self.body.is_digest_ok()
    }

    /// PDUs that the peer started and completed.
    pub(crate) fn pdus(&self) -> Watermark {
        let is_mid_pdu = self.input.is_mid_header() || !self.body.is_whole();
        Watermark { expected: self.pdus + u64::from(is_mid_pdu), done: self.pdus }
    }

    /// Bytes ever received.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.input.received_bytes()
    }

    /// See [`InputBuffer::unread`].
    #[inline]
    pub(crate) fn unread<'a>(&'a self, overflow: &'a [u8]) -> &'a [u8] {
        self.input.unread(overflow)
    }

    /// See [`InputBuffer::defer`].
    pub(crate) fn defer(&mut self, overflow: &[u8]) {
        self.input.defer(overflow);
    }

    /// See [`InputBuffer::is_deferred`].
    pub(crate) fn is_deferred(&self) -> bool {
        self.input.is_deferred()
    }

    /// Discards unparsed input.
    pub(crate) fn discard(&mut self) {
        self.predictor.clear();
        self.input.discard();
    }
}
