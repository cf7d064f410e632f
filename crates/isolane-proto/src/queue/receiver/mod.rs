//! Cutting the byte stream: a header, what follows it, the next header.
//!
//! It is the receiving machinery of both sides. What a PDU means, and which memory its data belongs to, is
//! told by the side that uses it.
//!
//! Files: `planning` says where the next bytes go, `headers` takes PDU headers, `guessed` what landed where
//! it was guessed to belong.

mod guessed;
mod headers;
mod planning;

use isolane_memory::Buffer;
use isolane_wire::pdu::{CapsuleCmd, CommonHeader};
use isolane_wire::{Direction, Framing};

use super::body::Body;
use super::guess::Guesses;
use super::header::Header;
use super::inbox::Inbox;
use super::progress::Debt;

/// The receiving half of a connection.
pub(crate) struct Receiver {
    from: Direction,
    framing: Framing,
    inbox: Inbox,
    body: Body,
    guesses: Guesses,
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
            inbox: Inbox::new(),
            body: Body::new(),
            guesses: Guesses::new(),
            last_common: [0; CommonHeader::LEN],
            last_header: None,
            prefix: 0,
            planned_direct: 0,
            long_expected: 0,
            pdus: 0,
        }
    }

    /// What was negotiated for this direction.
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
            self.body.placed(direct, destination);
        }
        self.inbox.received(n, direct, self.guesses.received(n - direct));
    }

    /// Whether there are bytes that were not looked at, wherever they lie.
    #[inline]
    pub(crate) fn has_unread(&self) -> bool {
        self.inbox.unread_len() > 0 || self.guesses.are_open()
    }

    /// What follows the header begins; its data belongs at `offset` of its destination.
    pub(crate) fn start_body(&mut self, header: &Header, offset: usize) {
        self.body.start(header.shape, offset);
        self.prefix = header.len + header.shape.padding;
        let start = self.inbox.consumed_bytes() + header.shape.padding as u64;
        self.guesses.learn(start, header.shape.data_len);
    }

    /// Takes what has arrived of the running PDU; true when that is everything.
    pub(crate) fn receive_body(&mut self, overflow: &[u8], destination: Option<&mut Buffer>) -> bool {
        if self.guesses.are_open() && self.body.data_left() > 0 {
            self.take_guessed(destination.as_deref());
        }
        let taken = self.body.take(self.inbox.unread(overflow), destination);
        self.inbox.consume(taken);
        self.pdus += u64::from(self.body.is_whole());
        self.body.is_whole()
    }

    /// Whether data is digested.
    pub(crate) fn is_digested(&self) -> bool {
        self.framing.data_digest
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
    pub(crate) fn is_intact(&self) -> bool {
        self.body.is_intact()
    }

    /// What the peer has begun to send, and what of it has come.
    pub(crate) fn pdus(&self) -> Debt {
        let is_mid_pdu = self.inbox.is_mid_header() || !self.body.is_whole();
        Debt { incurred: self.pdus + u64::from(is_mid_pdu), settled: self.pdus }
    }

    /// Bytes ever received.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.inbox.received_bytes()
    }

    /// See [`Inbox::unread`].
    #[inline]
    pub(crate) fn unread<'a>(&'a self, overflow: &'a [u8]) -> &'a [u8] {
        self.inbox.unread(overflow)
    }

    /// See [`Inbox::unread_len`].
    #[inline]
    pub(crate) fn unread_bytes(&self) -> usize {
        self.inbox.unread_len()
    }

    /// See [`Inbox::defer`].
    pub(crate) fn defer(&mut self, overflow: &[u8]) {
        self.inbox.defer(overflow);
    }

    /// See [`Inbox::is_deferred`].
    pub(crate) fn is_deferred(&self) -> bool {
        self.inbox.is_deferred()
    }

    /// Forgets what was received and not understood yet.
    pub(crate) fn discard(&mut self) {
        self.guesses.clear();
        self.inbox.discard();
    }
}
