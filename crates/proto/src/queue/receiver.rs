//! Cutting the byte stream: a header, what follows it, the next header.
//!
//! It is the receiving machinery of both sides. What a PDU means, and which memory its data belongs to, is
//! told by the side that uses it.

use std::io::IoSliceMut;

use isolane_memory::Buffer;
use isolane_wire::pdu::{CapsuleCmd, CommonHeader, HeaderFault, PduType, TermReq};
use isolane_wire::{Direction, Framing, SubmissionEntry};

use super::body::Body;
use super::fault::{FatalError, Fault};
use super::guess::{Guess, Guesses, Piece};
use super::header::Header;
use super::inbox::Inbox;
use super::plan::{RECEIVE_SLICES_MAX, ReceivePlan};
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
    /// Counted down from [`SHORT_IN_A_ROW`] with each PDU that has no long data.
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

    /// Where the next bytes go: `destination` takes the data of the running PDU, and `overflow` what follows.
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

    /// The same, and `guessed` takes what probably follows: each guess with the pieces of its place.
    pub(crate) fn plan_ahead<'a, P: ExactSizeIterator<Item = &'a mut [u8]>>(
        &mut self,
        plan: &mut ReceivePlan<'a>,
        destination: Option<&'a mut Buffer>,
        guessed: impl Iterator<Item = (Guess, P)>,
        overflow: &'a mut [u8],
    ) {
        if self.plan_destination(plan, destination) {
            self.plan_guesses(plan, guessed, overflow);
        }
    }

    /// Whether more may follow.
    fn plan_destination<'a>(
        &mut self,
        plan: &mut ReceivePlan<'a>,
        destination: Option<&'a mut Buffer>,
    ) -> bool {
        self.planned_direct = 0;
        if self.inbox.is_deferred() {
            return false;
        }
        let Some(buffer) = destination else { return true };
        let (planned, is_whole) = self.body.plan(buffer, plan);
        self.planned_direct = planned;
        is_whole
    }

    /// Whether the next plan shall go on with guesses.
    pub(crate) fn shall_guess(&mut self) -> bool {
        let is_at_boundary = !self.inbox.is_mid_header() && self.body.is_whole();
        let is_worth_it = self.guesses.begin(self.inbox.received_bytes(), is_at_boundary, self.prefix);
        is_worth_it && !self.body.is_padded()
    }

    /// Header and data by turns, headers at the front of the overflow; then the rest of it, unless there is more to guess.
    fn plan_guesses<'a, P: ExactSizeIterator<Item = &'a mut [u8]>>(
        &mut self,
        plan: &mut ReceivePlan<'a>,
        guessed: impl Iterator<Item = (Guess, P)>,
        overflow: &'a mut [u8],
    ) {
        let mut rest = overflow;
        for (guess, pieces) in guessed {
            if self.guesses.are_enough() {
                // The next plan guesses better than to copy what lands in the overflow.
                return;
            }
            let gap = self.guesses.gap_before_next();
            let has_room = plan.slices.len() + pieces.len() + 2 <= RECEIVE_SLICES_MAX;
            if !has_room || rest.len() < gap + OVERFLOW_MIN {
                break;
            }
            let (header, behind) = rest.split_at_mut(gap);
            plan.slices.push(IoSliceMut::new(header));
            pieces.for_each(|piece| plan.slices.push(IoSliceMut::new(piece)));
            self.guesses.push(guess);
            rest = behind;
        }
        self.plan_overflow(plan, rest);
    }

    fn plan_overflow<'a>(&self, plan: &mut ReceivePlan<'a>, overflow: &'a mut [u8]) {
        let len = if self.long_expected > 0 { overflow.len().min(HEADERS_BYTES) } else { overflow.len() };
        plan.slices.push(IoSliceMut::new(&mut overflow[..len]));
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

    /// Whether received bytes lie where it was guessed that they belong.
    #[inline]
    pub(crate) fn is_guessing(&self) -> bool {
        self.guesses.are_open()
    }

    /// Whether what follows this header is as was guessed, whosever it is, or no data at all. `unread` bytes of the header are
    /// still to be read.
    #[inline]
    pub(crate) fn is_shaped_as_guessed(&self, header: &Header, unread: usize) -> bool {
        let data_len = header.shape.data_len;
        data_len == 0
            || self.guesses.next().is_some_and(|guess| guess.len == data_len)
                && self.inbox.unread_len() == unread + header.shape.padding
    }

    /// Whether all of `datal` bytes from the start of command `cid` follow this header, as was guessed.
    pub(crate) fn is_as_guessed(&self, header: &Header, cid: u16, datal: usize) -> bool {
        self.guesses.next() == Some(Guess { cid, len: datal })
            && self.inbox.unread_len() == header.shape.padding
    }

    /// The guess that the data which begins now has landed by, and how much of the data that is.
    pub(crate) fn landed(&self) -> Option<(Guess, usize)> {
        let is_first = self.guesses.are_open() && self.body.data_left() > 0;
        self.guesses.next().filter(|_| is_first).map(|guess| (guess, self.guesses.placed(guess)))
    }

    /// Whether the memory of command `cid` may hold received bytes of others.
    pub(crate) fn is_guessed(&self, cid: u16) -> bool {
        self.guesses.has(cid)
    }

    /// The guess was wrong: gathers what lies in guessed places. `data` copies so many bytes from the start of the memory of a
    /// command.
    pub(crate) fn give_up_guesses(
        &mut self,
        overflow: &[u8],
        mut data: impl FnMut(u16, usize, &mut Vec<u8>),
    ) {
        let mut bytes = self.inbox.unread(overflow).to_vec();
        self.guesses.give_up(|piece| match piece {
            Piece::Data { cid, len } => data(cid, len, &mut bytes),
            Piece::Overflow(range) => bytes.extend_from_slice(&overflow[range]),
        });
        self.inbox.keep(bytes);
    }

    /// The header at the front of `unread`, if it has this length, is whole, and starts like the last one.
    #[inline]
    fn like_last<'a, const LEN: usize>(&self, unread: &'a [u8]) -> Option<(Header, &'a [u8; LEN])> {
        let bytes: &[u8; LEN] = unread.first_chunk()?;
        let header = self.last_header.filter(|header| header.len == LEN)?;
        bytes.starts_with(&self.last_common).then_some((header, bytes))
    }

    /// The next header where it lies, if it is like the last one, and neither digest nor padding follows it.
    #[inline]
    pub(crate) fn usual_header<'a>(&self, overflow: &'a [u8]) -> Option<(Header, &'a [u8; USUAL_LEN])> {
        let (header, bytes) = self.like_last(self.inbox.untouched(overflow)?)?;
        (header.shape.padding == 0 && !self.framing.data_digest).then_some((header, bytes))
    }

    /// Takes the usual header of a PDU without data.
    #[inline]
    pub(crate) fn take_usual(&mut self) {
        self.inbox.consume(USUAL_LEN);
        self.expect(0);
        self.pdus += 1;
    }

    /// The command whose whole data was guessed to follow the next header, and has arrived.
    #[inline]
    pub(crate) fn usual_guess(&self, header: &Header) -> Option<u16> {
        let guess = self.guesses.next_whole()?;
        let is_alone = self.inbox.unread_len() == USUAL_LEN;
        (guess.len == header.shape.data_len && is_alone).then_some(guess.cid)
    }

    /// Takes the usual header and the data that was guessed to follow it.
    #[inline]
    pub(crate) fn take_usual_guess(&mut self) {
        let len = self.guesses.next().map_or(0, |guess| guess.len);
        self.inbox.consume(USUAL_LEN);
        self.expect(len);
        self.pdus += 1;
        self.prefix = USUAL_LEN;
        self.guesses.learn(self.inbox.consumed_bytes(), len);
        let (placed, behind) = self.guesses.verify();
        self.inbox.skip(placed, behind);
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
        self.expect(header.shape.data_len);
        Ok(Some(header))
    }

    /// Whether long data is to be expected after a PDU with so many bytes of data.
    #[inline]
    fn expect(&mut self, data_len: usize) {
        self.long_expected = match data_len {
            LONG_BYTES.. => SHORT_IN_A_ROW,
            _ => self.long_expected.saturating_sub(1),
        };
    }

    /// The next header, if it is right and has arrived whole: the usual case, collected by one copy.
    #[inline]
    fn whole_header(&mut self, overflow: &[u8]) -> Option<Header> {
        if self.inbox.is_mid_header() {
            return None;
        }
        let unread = self.inbox.unread(overflow);
        let common = unread.first_chunk()?;
        let header = match self.last_header {
            Some(header) if self.last_common == *common => header,
            _ => {
                let header = Header::parse(common, self.from, &self.framing).ok()?;
                (self.last_common, self.last_header) = (*common, Some(header));
                header
            }
        };
        (header.len <= unread.len()).then_some(header)
    }

    /// The next capsule's header and command, if it is like the last, has arrived whole and bears no digest. It stays where it
    /// is: see [`Receiver::take_header`].
    #[inline]
    pub(crate) fn peek_capsule(&self, overflow: &[u8], entry: &mut SubmissionEntry) -> Option<Header> {
        let (header, bytes) = self.like_last(self.inbox.unread(overflow))?;
        if self.inbox.is_mid_header() || header.pdu_type != PduType::CapsuleCmd {
            return None;
        }
        *entry = CapsuleCmd::decode_checked(bytes, header.shape.data_len as u32).entry;
        Some(header)
    }

    /// The header that was peeked at is acted on.
    #[inline]
    pub(crate) fn take_header(&mut self, header: &Header) {
        self.inbox.consume(header.len);
        self.expect(header.shape.data_len);
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

    /// The collected header as so many bytes, to be decoded as the PDU that its checked front promises.
    #[inline]
    pub(crate) fn checked<const LEN: usize>(&self) -> Result<&[u8; LEN], FatalError> {
        let bytes = self.inbox.header();
        let pdu_type = bytes.first().copied().unwrap_or_default();
        bytes.first_chunk().ok_or(FatalError::header(pdu_type, HeaderFault::invalid(CommonHeader::HLEN)))
    }

    /// The collected header is a TermReq: nothing that follows it matters.
    pub(crate) fn take_term_req(&mut self) -> Result<TermReq, FatalError> {
        let request = TermReq::decode(self.header()).map_err(|_| FatalError::silent(Fault::TermReq))?;
        self.discard();
        Ok(request)
    }

    /// The collected header was acted on.
    pub(crate) fn clear_header(&mut self) {
        self.inbox.clear_header();
        self.pdus += u64::from(self.body.is_whole());
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

    /// All data of the PDU that begins is in its place, and there is nothing else to look at.
    #[inline]
    pub(crate) fn receive_landed(&mut self) {
        self.take_guessed(None);
        self.pdus += 1;
        debug_assert!(self.body.is_whole(), "more than a landed body was to come");
    }

    /// Whether data is digested.
    pub(crate) fn is_digested(&self) -> bool {
        self.framing.data_digest
    }

    /// The header was as guessed, so the data is in its place, as far as it has come.
    fn take_guessed(&mut self, destination: Option<&Buffer>) {
        self.inbox.consume(self.body.take_padding());
        let (placed, behind) = self.guesses.verify();
        self.body.placed(placed, destination);
        self.inbox.skip(placed, behind);
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

/// Data is long from so many bytes on: to receive its header first costs less than to copy it out of the overflow.
const LONG_BYTES: usize = 16 * 1024;
/// Room for the headers that come between long data.
const HEADERS_BYTES: usize = 512;
/// Long data is expected until so many PDUs in a row had none.
const SHORT_IN_A_ROW: u8 = 32;
/// Length of the PDU headers that are short, without a digest.
const USUAL_LEN: usize = 24;
/// What does not fit any guess needs some room, too.
const OVERFLOW_MIN: usize = 4096;
