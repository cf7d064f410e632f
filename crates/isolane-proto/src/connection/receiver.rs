//! The receiving half of a connection: splits the byte stream into headers and bodies.
//!
//! Both sides use it; they interpret the PDUs and provide the memory for the data. A receive plan
//! lists the destination of the current PDU, then predicted destinations, then the overflow.
//! Headers are read in place if they arrived whole. Data that arrived in its predicted destination
//! stays there if the headers match the prediction; otherwise the bytes are collected and read
//! again.
//!
//! Invariant: every received byte is either placed into its destination or read exactly once.

use std::io::IoSliceMut;

use isolane_connection::{InputBuffer, MAX_RECEIVE_SLICES, ReceivePlan, Watermark};
use isolane_memory::Buffer;
use isolane_wire::pdu::{CapsuleCmd, CommonHeader, HeaderFault, TermReq};
use isolane_wire::{Direction, Framing};

use super::body::Body;
use super::header::{Header, exact};
use super::predict::{LandedBytes, Prediction, Predictor};
use super::violation::{FatalError, Violation};

/// Capacity for the longest header with its digest (ICReq: 128) and a TermReq (152).
const MAX_HEADER_BYTES: usize = 160;

/// The receiving half of a connection.
pub(crate) struct Receiver {
    from: Direction,
    framing: Framing,
    input: InputBuffer<MAX_HEADER_BYTES>,
    body: Body,
    predictor: Predictor,
    /// The last valid common header and its decoded form: most headers are equal to the one before.
    last_common: [u8; CommonHeader::LEN],
    last_header: Option<Header>,
    /// Length of the last header in front of data, with its digest and padding.
    prefix: usize,
    /// Length of the known destination in the current plan.
    planned_direct: usize,
    /// Counted down from [`SHORT_IN_A_ROW`] with each PDU that has no long data.
    long_expected: u8,
    /// Number of PDUs received completely.
    pdus: u64,
}

impl Receiver {
    /// A connection that has received nothing from `from`.
    pub(crate) fn new(from: Direction) -> Receiver {
        Receiver {
            from,
            framing: Framing::default(),
            input: InputBuffer::default(),
            body: Body::default(),
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

    /// Records that the first `n` bytes of the plan have been filled.
    pub(crate) fn handle_received(&mut self, n: usize, destination: Option<&Buffer>) {
        let direct = n.min(self.planned_direct);
        self.planned_direct = 0;
        if direct > 0 {
            self.body.on_placed(direct, destination);
        }
        self.input.received(n, direct, self.predictor.received(n - direct));
    }

    /// Starts the body after `header`; its data belongs at `offset` of its destination.
    #[inline]
    pub(crate) fn start_body(&mut self, header: &Header, offset: usize) {
        self.body.start(header.layout, offset);
        self.prefix = header.prefix_len();
        let start = self.input.consumed_bytes() + u64::from(header.layout.padding);
        self.predictor.observe(start, header.data_len());
    }

    /// Consumes the received bytes of the current PDU. Returns `true` once the PDU is complete.
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

    /// Length of a capsule without data.
    #[inline]
    pub(crate) fn capsule_len(&self) -> usize {
        CapsuleCmd::LEN + self.framing.header_digest_len()
    }

    /// Data bytes of the current PDU that have not arrived.
    pub(crate) fn data_left(&self) -> usize {
        self.body.data_left()
    }

    /// Whether the data of the last PDU matches its digest.
    pub(crate) fn is_digest_ok(&self) -> bool {
        self.body.is_digest_ok()
    }

    /// Number of PDUs that the peer started and completed.
    pub(crate) fn pdus(&self) -> Watermark {
        let is_mid_pdu = self.input.is_mid_header() || !self.body.is_whole();
        Watermark { expected: self.pdus + u64::from(is_mid_pdu), done: self.pdus }
    }

    /// Total bytes received.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.input.received_bytes()
    }

    /// The bytes from the next header on. Headers before predicted data follow each other; old bytes can follow
    /// the last one.
    #[inline]
    pub(crate) fn upcoming<'a>(&'a self, overflow: &'a [u8]) -> &'a [u8] {
        if self.predictor.has_unverified() && self.input.unread_len() > 0 {
            overflow.get(self.input.unread_start()..).unwrap_or_default()
        } else {
            self.input.unread(overflow)
        }
    }

    /// See [`InputBuffer::defer`].
    pub(crate) fn defer(&mut self, overflow: &[u8]) {
        self.input.defer(overflow);
    }

    /// Discards unparsed input.
    pub(crate) fn discard(&mut self) {
        self.predictor.clear();
        self.input.discard();
    }
}

/// State that another process can continue.
impl Receiver {
    /// The framing of this direction.
    pub(crate) fn framing(&self) -> Framing {
        self.framing
    }

    /// The bytes that were received and not parsed: a part of a header, and deferred input.
    pub(crate) fn unparsed(&self) -> Vec<u8> {
        [self.input.header(), self.input.unread(&[])].concat()
    }

    /// Whether all unparsed bytes are stored here, and none in an overflow or in predicted destinations.
    pub(crate) fn is_self_contained(&self) -> bool {
        !self.predictor.has_unverified() && (self.input.unread_len() == 0 || self.input.is_deferred())
    }

    /// Padding after the header of the current PDU, in bytes.
    pub(crate) fn padding(&self) -> usize {
        self.last_header.map_or(0, |header| header.layout.padding.into())
    }

    /// Appends the bytes of the current PDU that have arrived after its header.
    pub(crate) fn copy_arrived(&self, destination: &Buffer, bytes: &mut Vec<u8>) {
        if let Some(header) = self.last_header {
            self.body.copy_arrived(header.layout, destination, bytes);
        }
    }

    /// Bytes of the current PDU that have not arrived.
    pub(crate) fn bytes_left(&self) -> usize {
        self.body.bytes_left()
    }

    /// Continues with `unparsed` bytes, of which the first `skip`, and as many later ones as are missing, belong to
    /// a PDU that is discarded.
    pub(crate) fn resume(&mut self, unparsed: Vec<u8>, skip: usize) {
        self.body.skip(skip);
        if !unparsed.is_empty() {
            self.input.received(unparsed.len(), 0, 0..0);
            self.input.replace_unread(unparsed);
        }
    }
}

/// Headers.
impl Receiver {
    /// The current header and its bytes, with its digest, which is not checked yet. `None` if
    /// [`Receiver::parse_header`] must parse it first, or if bytes are missing.
    #[inline(always)]
    pub(crate) fn header<'a>(&'a self, overflow: &'a [u8]) -> Option<(&'a Header, &'a [u8])> {
        let bytes = self.header_bytes(overflow);
        let header = self.last_header.as_ref()?;
        let is_same = bytes.first_chunk() == Some(&self.last_common);
        (is_same && bytes.len() >= header.len()).then_some((header, bytes))
    }

    /// Parses the current header, which differs from the last one or arrives in parts. Returns
    /// `false` if bytes are missing.
    #[inline(never)]
    pub(crate) fn parse_header(&mut self, overflow: &[u8]) -> Result<bool, FatalError> {
        let is_in_place = !self.input.is_mid_header()
            && self.input.unread(overflow).first_chunk().is_some_and(|common| {
                let parsed = Header::parse(common, self.from, &self.framing);
                parsed.is_ok_and(|header| {
                    (self.last_common, self.last_header) = (*common, Some(header));
                    self.input.unread_len() >= header.len()
                })
            });
        Ok(is_in_place || self.collect_header(overflow)?)
    }

    fn collect_header(&mut self, overflow: &[u8]) -> Result<bool, FatalError> {
        if !self.input.collect_header(overflow, CommonHeader::LEN) {
            return Ok(false);
        }
        let header = Header::parse(self.input.header(), self.from, &self.framing)?;
        let common = self.input.header().first_chunk();
        (self.last_common, self.last_header) = (*common.unwrap_or(&self.last_common), Some(header));
        Ok(self.input.collect_header(overflow, header.len()))
    }

    /// Collected or unread bytes from the start of the header.
    #[inline(always)]
    fn header_bytes<'a>(&'a self, overflow: &'a [u8]) -> &'a [u8] {
        if self.input.is_mid_header() { self.input.header() } else { self.input.unread(overflow) }
    }

    /// Decodes the current header again.
    pub(crate) fn decode<const LEN: usize, T>(
        &self,
        overflow: &[u8],
        decode: impl FnOnce(&[u8; LEN]) -> Result<T, HeaderFault>,
    ) -> Result<T, FatalError> {
        let bytes = exact(self.header_bytes(overflow))?;
        decode(bytes).map_err(|fault| FatalError::header(bytes[0], fault))
    }

    /// Saves the received header, which is at fault, because it must outlive the overflow.
    #[cold]
    pub(crate) fn save_header(&mut self, overflow: &[u8]) {
        if !self.input.is_mid_header()
            && let Some(header) = self.last_header
        {
            self.input.collect_header(overflow, header.len());
        }
    }

    /// The saved header, to be reported to the peer.
    pub(crate) fn saved_header(&self) -> &[u8] {
        self.input.header()
    }

    /// Consumes the received header.
    #[inline(always)]
    pub(crate) fn consume_header(&mut self, header: &Header) {
        let unread = self.input.take_header(header.len());
        self.input.consume(unread);
        self.predict_long_data(header.data_len());
        self.pdus += u64::from(header.data_len() == 0);
    }

    /// Takes the received TermReq, and discards the bytes after it.
    pub(crate) fn take_term_req(&mut self, overflow: &[u8], header: &Header) -> Result<TermReq, FatalError> {
        let bytes = &self.header_bytes(overflow)[..header.len()];
        let request = TermReq::decode(bytes).map_err(|_| FatalError::without_term_req(Violation::TermReq))?;
        self.discard();
        Ok(request)
    }

    /// Records the data length of a PDU, from which the next long data is predicted.
    #[inline]
    fn predict_long_data(&mut self, data_len: usize) {
        self.long_expected = match data_len {
            LONG_BYTES.. => SHORT_IN_A_ROW,
            _ => self.long_expected.saturating_sub(1),
        };
    }
}

/// Receive plans.
impl Receiver {
    /// Fills a plan: `destination` takes the data of the current PDU, and `overflow` the bytes
    /// after it.
    pub(crate) fn plan<'a>(
        &mut self,
        plan: &mut ReceivePlan<'a>,
        destination: Option<&'a mut Buffer>,
        overflow: &'a mut [u8],
    ) {
        if self.plan_destination(plan, destination) {
            self.plan_overflow(plan, overflow);
        }
    }

    /// As [`Receiver::plan`]; `predicted` has the destinations of the predicted PDUs that follow,
    /// each with its slices.
    pub(crate) fn plan_ahead<'a, P: ExactSizeIterator<Item = &'a mut [u8]>>(
        &mut self,
        plan: &mut ReceivePlan<'a>,
        destination: Option<&'a mut Buffer>,
        predicted: impl Iterator<Item = (Prediction, P)>,
        overflow: &'a mut [u8],
    ) {
        if self.plan_destination(plan, destination) {
            self.plan_predicted(plan, predicted, overflow);
        }
    }

    /// Returns `true` if more can follow.
    fn plan_destination<'a>(
        &mut self,
        plan: &mut ReceivePlan<'a>,
        destination: Option<&'a mut Buffer>,
    ) -> bool {
        self.planned_direct = 0;
        if self.input.is_deferred() {
            return false;
        }
        let Some(buffer) = destination else { return true };
        let (planned, is_whole) = self.body.plan(buffer, plan);
        self.planned_direct = planned;
        is_whole
    }

    /// Whether the next plan should contain predictions.
    pub(crate) fn should_predict(&mut self) -> bool {
        let is_at_boundary = !self.input.is_mid_header() && self.body.is_whole();
        let is_worth_it = self.predictor.begin(self.input.received_bytes(), is_at_boundary, self.prefix);
        is_worth_it && !self.body.is_padded()
    }

    /// Plans header and data alternately, with the headers at the front of the overflow, then the
    /// remaining overflow, unless the window is full.
    fn plan_predicted<'a, P: ExactSizeIterator<Item = &'a mut [u8]>>(
        &mut self,
        plan: &mut ReceivePlan<'a>,
        mut predicted: impl Iterator<Item = (Prediction, P)>,
        overflow: &'a mut [u8],
    ) {
        let mut remaining = overflow;
        let end = predicted.try_for_each(|(prediction, slices)| {
            if self.predictor.is_full() {
                return Err(PlanEnd::WindowFull);
            }
            let gap = self.predictor.gap_before_next();
            let fits = plan.len() + slices.len() + 2 <= MAX_RECEIVE_SLICES;
            if !fits || remaining.len() < gap + MIN_OVERFLOW_BYTES {
                return Err(PlanEnd::NoSpace);
            }
            let (header, tail) = std::mem::take(&mut remaining).split_at_mut(gap);
            plan.push(IoSliceMut::new(header));
            slices.for_each(|slice| plan.push(IoSliceMut::new(slice)));
            self.predictor.push(prediction);
            remaining = tail;
            Ok(())
        });
        if end != Err(PlanEnd::WindowFull) {
            self.plan_overflow(plan, remaining);
        }
    }

    fn plan_overflow<'a>(&self, plan: &mut ReceivePlan<'a>, overflow: &'a mut [u8]) {
        let len = if self.long_expected > 0 { overflow.len().min(HEADERS_BYTES) } else { overflow.len() };
        plan.push(IoSliceMut::new(&mut overflow[..len]));
    }
}

/// Data in predicted destinations.
impl Receiver {
    /// Whether received bytes are in predicted destinations.
    #[inline]
    pub(crate) fn has_unverified(&self) -> bool {
        self.predictor.has_unverified()
    }

    /// Whether the data after the received header has the predicted length, or the PDU has no data.
    #[inline]
    pub(crate) fn matches_predicted_layout(&self, header: &Header) -> bool {
        let data_len = header.data_len();
        data_len == 0
            || self.predictor.next().is_some_and(|prediction| prediction.len == data_len)
                && self.is_unread_padding(header)
    }

    /// Whether the predicted data, all `datal` bytes of command `cid`, follows the received header.
    #[inline]
    pub(crate) fn matches_prediction(&self, header: &Header, cid: u16, datal: usize) -> bool {
        self.predictor.next() == Some(Prediction { cid, len: datal }) && self.is_unread_padding(header)
    }

    /// Whether exactly the padding after the received header is unread.
    #[inline]
    fn is_unread_padding(&self, header: &Header) -> bool {
        let after = if self.input.is_mid_header() { 0 } else { header.len() };
        self.input.unread_len() - after == usize::from(header.layout.padding)
    }

    /// The prediction for the data that begins now, and the length of the data that has arrived.
    pub(crate) fn predicted_data(&self) -> Option<(Prediction, usize)> {
        let is_first = self.predictor.has_unverified() && self.body.data_left() > 0;
        self.predictor.next().filter(|_| is_first).map(|next| (next, self.predictor.placed(next)))
    }

    /// Whether the memory of command `cid` may hold received bytes of other PDUs.
    #[inline]
    pub(crate) fn is_predicted(&self, cid: u16) -> bool {
        self.predictor.has_unverified() && self.predictor.has(cid)
    }

    /// Collects the bytes in predicted destinations after a wrong prediction. `data` copies `len`
    /// bytes from the start of the memory of a command.
    pub(crate) fn rollback_predictions(
        &mut self,
        overflow: &[u8],
        mut data: impl FnMut(u16, usize, &mut Vec<u8>),
    ) {
        let mut bytes = self.input.unread(overflow).to_vec();
        self.predictor.rollback(|landed| match landed {
            LandedBytes::Data { cid, len } => data(cid, len, &mut bytes),
            LandedBytes::Overflow(range) => bytes.extend_from_slice(&overflow[range]),
        });
        self.input.replace_unread(bytes);
    }

    /// Consumes the data of the current PDU if all of it has arrived in its predicted destination, whose number
    /// this returns, and has no digest.
    #[inline]
    pub(crate) fn take_landed_data(&mut self) -> Option<u16> {
        let (prediction, placed) = self.predicted_data()?;
        if self.framing.data_digest || placed < self.body.data_left() {
            return None;
        }
        self.take_predicted(None);
        self.pdus += 1;
        Some(prediction.cid)
    }

    /// Consumes the PDU of the received header, whose data was predicted, if all of its data has
    /// arrived and has no digest. Returns `false` otherwise, and consumes nothing.
    #[inline(always)]
    pub(crate) fn take_landed(&mut self, header: &Header) -> bool {
        let len = header.data_len();
        if self.framing.data_digest || !self.predictor.is_whole(len) {
            return false;
        }
        let before = self.input.take_header(header.len()) + usize::from(header.layout.padding);
        self.predict_long_data(len);
        self.prefix = header.prefix_len();
        self.predictor.observe(self.input.consumed_bytes() + before as u64, len);
        let next = self.predictor.confirm_placed(len);
        self.input.skip(before + len, next);
        self.pdus += 1;
        true
    }

    /// Confirms the prediction for the current PDU, whose received data is in place.
    fn take_predicted(&mut self, destination: Option<&Buffer>) {
        self.input.consume(self.body.take_padding());
        let (placed, next) = self.predictor.confirm();
        self.body.on_placed(placed, destination);
        self.input.skip(placed, next);
    }
}

/// Reason for the end of a plan with predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlanEnd {
    /// The window is full: the next plan predicts better than copying from the overflow costs.
    WindowFull,
    NoSpace,
}

/// Minimum length of long data: receiving its header first costs less than copying the data out of
/// the overflow.
const LONG_BYTES: usize = 16 * 1024;
/// Number of consecutive PDUs without long data after which no long data is expected.
const SHORT_IN_A_ROW: u8 = 32;
/// Space for the headers between long data.
const HEADERS_BYTES: usize = 512;
/// Minimum space for the bytes that match no prediction.
const MIN_OVERFLOW_BYTES: usize = 4096;
