//! Reads PDU headers, in place where they arrived whole.

use isolane_wire::Framing;
use isolane_wire::pdu::{CommonHeader, HeaderFault, TermReq};

use super::Receiver;
use crate::connection::header::Header;
use crate::connection::violation::{FatalError, Violation};

impl Receiver {
    /// Finds and checks the next header, which [`Receiver::header`] then returns. `None`: more bytes must
    /// arrive.
    #[inline(always)]
    pub(crate) fn receive_header(&mut self, overflow: &[u8]) -> Result<Option<Header>, FatalError> {
        let unread = self.input.unread(overflow);
        if let Some(common) = unread.first_chunk()
            && !self.input.is_mid_header()
        {
            let header = match self.last_header {
                Some(header) if self.last_common == *common => header,
                _ => match Header::parse(common, self.from, &self.framing) {
                    Ok(header) => {
                        (self.last_common, self.last_header) = (*common, Some(header));
                        header
                    }
                    Err(_) => return self.collect_header(overflow),
                },
            };
            if let Some(bytes) = unread.get(..header.len) {
                header.verify(bytes)?;
                return Ok(Some(header));
            }
        }
        self.collect_header(overflow)
    }

    /// Copies a header that arrives in parts to the scratch.
    #[cold]
    fn collect_header(&mut self, overflow: &[u8]) -> Result<Option<Header>, FatalError> {
        if !self.input.collect_header(overflow, CommonHeader::LEN) {
            return Ok(None);
        }
        let header = Header::parse(self.input.header(), self.from, &self.framing)?;
        if !self.input.collect_header(overflow, header.len) {
            return Ok(None);
        }
        header.verify(self.input.header())?;
        Ok(Some(header))
    }

    /// The bytes of the header that was received: in the scratch, or still in front of the unread bytes.
    #[inline]
    pub(crate) fn header<'a>(&'a self, overflow: &'a [u8]) -> &'a [u8] {
        match self.input.is_mid_header() {
            true => self.input.header(),
            false => self.input.unread(overflow),
        }
    }

    /// Decodes the received header as a PDU.
    #[inline]
    pub(crate) fn decode<const LEN: usize, T>(
        &self,
        overflow: &[u8],
        decode: impl FnOnce(&[u8; LEN], &Framing) -> Result<T, HeaderFault>,
    ) -> Result<T, FatalError> {
        let bytes = self.header(overflow);
        let whole = bytes.first_chunk().ok_or(HeaderFault::invalid(CommonHeader::HLEN));
        let pdu_type = bytes.first().copied().unwrap_or_default();
        whole
            .and_then(|whole| decode(whole, &self.framing))
            .map_err(|fault| FatalError::header(pdu_type, fault))
    }

    /// The received header as `LEN` bytes, to be decoded as the PDU that its checked front promises.
    #[inline]
    pub(crate) fn checked<'a, const LEN: usize>(
        &'a self,
        overflow: &'a [u8],
    ) -> Result<&'a [u8; LEN], FatalError> {
        let bytes = self.header(overflow);
        match bytes.first_chunk() {
            Some(header) => Ok(header),
            None => {
                let pdu_type = bytes.first().copied().unwrap_or_default();
                Err(FatalError::header(pdu_type, HeaderFault::invalid(CommonHeader::HLEN)))
            }
        }
    }

    /// Copies the received header to the scratch, because it is at fault and outlives the overflow.
    #[cold]
    pub(crate) fn keep_header(&mut self, overflow: &[u8]) {
        if !self.input.is_mid_header()
            && let Some(header) = self.last_header
        {
            self.input.collect_header(overflow, header.len);
        }
    }

    /// The header that was kept, to be reported to the peer.
    pub(crate) fn kept_header(&self) -> &[u8] {
        self.input.header()
    }

    /// Consumes the received header.
    #[inline(always)]
    pub(crate) fn consume_header(&mut self, header: &Header) {
        match self.input.is_mid_header() {
            true => self.input.clear_header(),
            false => self.input.consume(header.len),
        }
        self.predict_long_data(header.layout.data_len);
        self.pdus += u64::from(header.layout.data_len == 0);
    }

    /// The collected header is a TermReq: nothing that follows it matters.
    pub(crate) fn take_term_req(&mut self, overflow: &[u8], header: &Header) -> Result<TermReq, FatalError> {
        let bytes = &self.header(overflow)[..header.len];
        let request = TermReq::decode(bytes).map_err(|_| FatalError::without_term_req(Violation::TermReq))?;
        self.discard();
        Ok(request)
    }

    /// Whether long data is to be expected after a PDU with so many bytes of data.
    #[inline]
    pub(super) fn predict_long_data(&mut self, data_len: usize) {
        self.long_expected = match data_len {
            LONG_BYTES.. => SHORT_IN_A_ROW,
            _ => self.long_expected.saturating_sub(1),
        };
    }
}

/// Data is long from so many bytes on: to receive its header first costs less than to copy it out of the
/// overflow.
const LONG_BYTES: usize = 16 * 1024;
/// Long data is expected until so many PDUs in a row had none.
pub(super) const SHORT_IN_A_ROW: u8 = 32;
