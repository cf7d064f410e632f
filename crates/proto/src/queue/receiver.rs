//! Cutting the byte stream: a header, what follows it, the next header.
//!
//! It is the receiving machinery of both sides. What a PDU means, and which memory its data belongs to, is
//! told by the side that uses it.

use std::io::IoSliceMut;

use isolane_memory::Buffer;
use isolane_wire::pdu::{CommonHeader, HeaderFault};
use isolane_wire::{Direction, Framing};

use super::body::Body;
use super::fault::FatalError;
use super::header::Header;
use super::inbox::Inbox;
use super::plan::ReceivePlan;
use super::progress::Debt;

/// The receiving half of a connection.
pub(crate) struct Receiver {
    from: Direction,
    framing: Framing,
    inbox: Inbox,
    body: Body,
    /// Bytes of the running plan that go straight to their destination.
    planned_direct: usize,
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
            planned_direct: 0,
            pdus: 0,
        }
    }

    /// What was negotiated for this direction.
    pub(crate) fn set_framing(&mut self, framing: Framing) {
        self.framing = framing;
        self.body.set_digested(framing.data_digest);
    }

    /// Where the next bytes go: `destination` takes the data of the running PDU.
    pub(crate) fn plan<'a>(
        &mut self,
        destination: Option<&'a mut Buffer>,
        overflow: &'a mut [u8],
    ) -> ReceivePlan<'a> {
        let mut plan = ReceivePlan::new();
        self.planned_direct = 0;
        if self.inbox.is_deferred() {
            return plan;
        }
        let mut is_whole = true;
        if let Some(buffer) = destination {
            (self.planned_direct, is_whole) = self.body.plan(buffer, &mut plan);
        }
        if is_whole {
            plan.slices.push(IoSliceMut::new(overflow));
        }
        plan
    }

    /// The first `n` bytes of the plan have been filled.
    pub(crate) fn handle_received(&mut self, n: usize, destination: Option<&Buffer>) {
        let direct = n.min(self.planned_direct);
        self.planned_direct = 0;
        if direct > 0
            && let Some(buffer) = destination
        {
            self.body.placed(direct, buffer);
        }
        self.inbox.received(n, n - direct);
    }

    /// Collects and checks the next header. `None`: more bytes must arrive.
    #[inline]
    pub(crate) fn receive_header(&mut self, overflow: &[u8]) -> Result<Option<Header>, FatalError> {
        let header = match self.whole_header(overflow) {
            Some(header) => header,
            None if !self.inbox.gather(overflow, CommonHeader::LEN) => return Ok(None),
            None => Header::parse(self.inbox.header(), self.from, &self.framing)?,
        };
        if !self.inbox.gather(overflow, header.len) {
            return Ok(None);
        }
        header.verify(self.inbox.header())?;
        Ok(Some(header))
    }

    /// The next header, if it is right and has arrived whole: the usual case, collected by one copy.
    #[inline]
    fn whole_header(&self, overflow: &[u8]) -> Option<Header> {
        let unread = self.inbox.unread(overflow);
        if self.inbox.is_mid_header() || unread.len() < CommonHeader::LEN {
            return None;
        }
        let header = Header::parse(unread, self.from, &self.framing).ok()?;
        (header.len <= unread.len()).then_some(header)
    }

    /// The bytes of the collected header.
    pub(crate) fn header(&self) -> &[u8] {
        self.inbox.header()
    }

    /// Decodes the collected header as a PDU.
    #[inline]
    pub(crate) fn decode<const LEN: usize, T>(
        &self,
        decode: impl FnOnce(&[u8; LEN], &Framing) -> Result<T, HeaderFault>,
    ) -> Result<T, FatalError> {
        let bytes = self.inbox.header();
        let whole = bytes.first_chunk().ok_or(HeaderFault::invalid(CommonHeader::HLEN));
        let pdu_type = bytes.first().copied().unwrap_or_default();
        whole
            .and_then(|whole| decode(whole, &self.framing))
            .map_err(|fault| FatalError::header(pdu_type, fault))
    }

    /// The collected header was acted on.
    pub(crate) fn clear_header(&mut self) {
        self.inbox.clear_header();
        self.pdus += u64::from(self.body.is_whole());
    }

    /// What follows the header begins; its data belongs at `offset` of its destination.
    pub(crate) fn start_body(&mut self, header: &Header, offset: usize) {
        self.body.start(header.shape, offset);
    }

    /// Takes what has arrived of the running PDU; true when that is everything.
    pub(crate) fn receive_body(&mut self, overflow: &[u8], destination: Option<&mut Buffer>) -> bool {
        let taken = self.body.take(self.inbox.unread(overflow), destination);
        self.inbox.consume(taken);
        self.pdus += u64::from(self.body.is_whole());
        self.body.is_whole()
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
        self.inbox.discard();
    }
}
