//! Taking PDU headers: like the last one in place, any other collected and checked.

use isolane_wire::pdu::{CapsuleCmd, CommonHeader, HeaderFault, PduType, TermReq};
use isolane_wire::{Framing, SubmissionEntry};

use super::Receiver;
use crate::queue::fault::{FatalError, Fault};
use crate::queue::header::Header;

impl Receiver {
    /// The next header where it lies, if it is like the last one, and neither digest nor padding follows it.
    #[inline]
    pub(crate) fn usual_header<'a>(&self, overflow: &'a [u8]) -> Option<(Header, &'a [u8; USUAL_LEN])> {
        let (header, bytes) = self.like_last(self.inbox.untouched(overflow)?)?;
        let is_bare = header.len == USUAL_LEN && header.shape.padding == 0 && !self.framing.data_digest;
        is_bare.then_some((header, bytes))
    }

    /// Takes the usual header of a PDU without data.
    #[inline]
    pub(crate) fn take_usual(&mut self) {
        self.inbox.consume(USUAL_LEN);
        self.expect(0);
        self.pdus += 1;
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

    /// The next capsule's header and command, if it is like the last, has arrived whole, and its digest (if
    /// it bears one) is right. It stays where it is: see [`Receiver::take_header`].
    #[inline]
    pub(crate) fn peek_capsule(&self, overflow: &[u8], entry: &mut SubmissionEntry) -> Option<Header> {
        let unread = self.inbox.unread(overflow);
        let (header, bytes) = self.like_last(unread)?;
        if self.inbox.is_mid_header() || header.pdu_type != PduType::CapsuleCmd {
            return None;
        }
        header.verify(unread.get(..header.len)?).ok()?;
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

    /// The header at the front of `unread`, if it has this length without its digest, is there, and starts
    /// like the last one.
    #[inline]
    fn like_last<'a, const LEN: usize>(&self, unread: &'a [u8]) -> Option<(Header, &'a [u8; LEN])> {
        let bytes: &[u8; LEN] = unread.first_chunk()?;
        let header = self.last_header.filter(|header| header.hlen == LEN)?;
        bytes.starts_with(&self.last_common).then_some((header, bytes))
    }

    /// Whether long data is to be expected after a PDU with so many bytes of data.
    #[inline]
    pub(super) fn expect(&mut self, data_len: usize) {
        self.long_expected = match data_len {
            LONG_BYTES.. => SHORT_IN_A_ROW,
            _ => self.long_expected.saturating_sub(1),
        };
    }
}

/// Length of the PDU headers that are short, without a digest.
pub(super) const USUAL_LEN: usize = 24;
/// Data is long from so many bytes on: to receive its header first costs less than to copy it out of the
/// overflow.
const LONG_BYTES: usize = 16 * 1024;
/// Long data is expected until so many PDUs in a row had none.
pub(super) const SHORT_IN_A_ROW: u8 = 32;
