//! What landed where it was guessed to belong: taken in its place if the headers agree, gathered if they do
//! not.

use isolane_memory::Buffer;

use super::Receiver;
use super::headers::USUAL_LEN;
use crate::queue::guess::{Guess, Piece};
use crate::queue::header::Header;

impl Receiver {
    /// Whether received bytes lie where it was guessed that they belong.
    #[inline]
    pub(crate) fn is_guessing(&self) -> bool {
        self.guesses.are_open()
    }

    /// Whether what follows this header is as was guessed, whosever it is, or no data at all. `unread` bytes
    /// of the header are still to be read.
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
    #[inline]
    pub(crate) fn is_guessed(&self, cid: u16) -> bool {
        self.guesses.has(cid)
    }

    /// The guess was wrong: gathers what lies in guessed places. `data` copies so many bytes from the start
    /// of the memory of a command.
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

    /// The guess of all data behind the next header, if that has arrived.
    #[inline]
    pub(crate) fn usual_guess(&self, header: &Header) -> Option<Guess> {
        let guess = self.guesses.next_whole()?;
        let is_alone = self.inbox.unread_len() == USUAL_LEN;
        (guess.len == header.shape.data_len && is_alone).then_some(guess)
    }

    /// Takes the usual header and the data of the guess that was [told](Receiver::usual_guess) to follow it.
    #[inline(always)]
    pub(crate) fn take_usual_guess(&mut self, guess: Guess) {
        self.expect(guess.len);
        self.pdus += 1;
        self.prefix = USUAL_LEN;
        self.guesses.learn(self.inbox.consumed_bytes() + USUAL_LEN as u64, guess.len);
        let behind = self.guesses.verify_placed(guess.len);
        self.inbox.pass(USUAL_LEN + guess.len, behind);
    }

    /// All data behind the usual header, if it has arrived and nothing was guessed.
    #[inline]
    pub(crate) fn usual_data<'a>(&self, len: usize, overflow: &'a [u8]) -> Option<&'a [u8]> {
        match self.guesses.are_open() {
            true => None,
            false => self.inbox.untouched(overflow)?.get(USUAL_LEN..)?.get(..len),
        }
    }

    /// Takes the usual header and the data that was [told](Receiver::usual_data) to follow it.
    #[inline]
    pub(crate) fn take_usual_data(&mut self, len: usize) {
        self.expect(len);
        self.pdus += 1;
        self.prefix = USUAL_LEN;
        self.guesses.learn(self.inbox.consumed_bytes() + USUAL_LEN as u64, len);
        self.inbox.consume(USUAL_LEN + len);
    }

    /// All data of the PDU that begins is in its place, and there is nothing else to look at.
    #[inline]
    pub(crate) fn receive_landed(&mut self) {
        self.take_guessed(None);
        self.pdus += 1;
        debug_assert!(self.body.is_whole(), "more than a landed body was to come");
    }

    /// The header was as guessed, so the data is in its place, as far as it has come.
    pub(super) fn take_guessed(&mut self, destination: Option<&Buffer>) {
        self.inbox.consume(self.body.take_padding());
        let (placed, behind) = self.guesses.verify();
        self.body.placed(placed, destination);
        self.inbox.skip(placed, behind);
    }
}
