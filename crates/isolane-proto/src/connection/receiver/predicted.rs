//! Predicted data: kept in place if the headers match, gathered and read again otherwise.

use isolane_memory::Buffer;

use super::Receiver;
use crate::connection::header::Header;
use crate::connection::predict::{Piece, Prediction};

impl Receiver {
    /// Whether received bytes lie where it was guessed that they belong.
    #[inline]
    pub(crate) fn has_unverified(&self) -> bool {
        self.predictor.has_unverified()
    }

    /// Whether the data behind the received header has the predicted length, or there is none.
    #[inline]
    pub(crate) fn matches_predicted_layout(&self, header: &Header) -> bool {
        let data_len = header.layout.data_len;
        data_len == 0
            || self.predictor.next().is_some_and(|guess| guess.len == data_len)
                && self.unread_after(header) == header.layout.padding
    }

    /// Whether the predicted data, all `datal` bytes of command `cid`, follows the received header.
    #[inline]
    pub(crate) fn matches_prediction(&self, header: &Header, cid: u16, datal: usize) -> bool {
        self.predictor.next() == Some(Prediction { cid, len: datal })
            && self.unread_after(header) == header.layout.padding
    }

    /// Unread bytes behind the received header.
    #[inline]
    fn unread_after(&self, header: &Header) -> usize {
        self.input.unread_len() - if self.input.is_mid_header() { 0 } else { header.len }
    }

    /// The guess that the data which begins now has landed by, and how much of the data that is.
    pub(crate) fn predicted_data(&self) -> Option<(Prediction, usize)> {
        let is_first = self.predictor.has_unverified() && self.body.data_left() > 0;
        self.predictor.next().filter(|_| is_first).map(|guess| (guess, self.predictor.placed(guess)))
    }

    /// Whether the memory of command `cid` may hold received bytes of others.
    #[inline]
    pub(crate) fn is_predicted(&self, cid: u16) -> bool {
        self.predictor.has(cid)
    }

    /// The guess was wrong: gathers what lies in guessed places. `data` copies so many bytes from the start
    /// of the memory of a command.
    pub(crate) fn rollback_predictions(
        &mut self,
        overflow: &[u8],
        mut data: impl FnMut(u16, usize, &mut Vec<u8>),
    ) {
        let mut bytes = self.input.unread(overflow).to_vec();
        self.predictor.rollback(|piece| match piece {
            Piece::Data { cid, len } => data(cid, len, &mut bytes),
            Piece::Overflow(range) => bytes.extend_from_slice(&overflow[range]),
        });
        self.input.keep(bytes);
    }

    /// Takes the PDU of the received header, whose data was predicted, if all of the data has arrived and it
    /// bears no digest. Returns `false` otherwise, and takes nothing.
    #[inline(always)]
    pub(crate) fn take_landed(&mut self, header: &Header) -> bool {
        let len = header.layout.data_len;
        if self.framing.data_digest || !self.predictor.is_whole(len) {
            return false;
        }
        self.consume_header(header);
        self.input.consume(header.layout.padding);
        self.prefix = header.len + header.layout.padding;
        self.predictor.observe(self.input.consumed_bytes(), len);
        let behind = self.predictor.confirm_placed(len);
        self.input.skip(len, behind);
        self.pdus += 1;
        true
    }

    /// The header was as guessed, so the data is in its place, as far as it has come.
    pub(super) fn take_predicted(&mut self, destination: Option<&Buffer>) {
        self.input.consume(self.body.take_padding());
        let (placed, behind) = self.predictor.confirm();
        self.body.on_placed(placed, destination);
        self.input.skip(placed, behind);
    }
}
