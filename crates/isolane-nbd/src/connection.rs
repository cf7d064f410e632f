//! One connection without I/O: bytes in, commands out; replies in, bytes out.
//!
//! The driver receives into [`Connection::fill_receive_plan`], calls [`Connection::poll`] until it returns `None`,
//! and sends the [output](Connection::fill_transmit_plan).
//!
//! Invariant: each [`Permit`] is one request without a reply; a reply consumes it.

use std::io::IoSliceMut;
use std::sync::Arc;

use isolane_connection::{
    InputBuffer, MAX_DESTINATION_BYTES, MAX_DESTINATION_SLICES, Outstanding, ReceivePlan, SendQueue,
    TransmitPlan, Watermark,
};
use isolane_memory::{Buffer, Payload};
use isolane_volume::{Extent, VolumeError};

use crate::export::Export;
use crate::handshake::{self, ALLOCATION_ID, MAX_OPTION_BYTES, Negotiated, Next};
use crate::request::{self, Command, Parsed, Refusal};
use crate::wire::{
    Be, CHUNK_FLAG_DONE, CHUNK_MAGIC, Chunk, CommandCode, Descriptor, ErrorChunk, OPTION_MAGIC, OptionCode,
    OptionHeader, REQUEST_MAGIC, RequestHeader, SIMPLE_REPLY_MAGIC, SimpleReply, allocation, chunk,
};

/// One connection of a client.
pub struct Connection {
    export: Arc<Export>,
    negotiated: Negotiated,
    state: State,
    input: InputBuffer<{ RequestHeader::LEN }>,
    output: SendQueue,
    /// Requests without a reply.
    in_flight: usize,
    /// Their data in bytes.
    in_flight_bytes: usize,
    /// Number of messages that have begun to arrive, and that are complete.
    messages: Watermark,
}

/// Awaited input.
#[derive(Debug)]
enum State {
    ClientFlags,
    Option,
    OptionData {
        option: u32,
        len: usize,
        data: Vec<u8>,
    },
    /// Data of an option that is too long.
    SkipOption {
        option: u32,
        left: usize,
    },
    Request,
    /// Data of a write, once it has memory.
    Data {
        permit: Permit,
        lba: u64,
        blocks: u64,
        fua: bool,
        buffer: Option<Buffer>,
        filled: usize,
    },
    /// Data of a write with an error.
    SkipData {
        permit: Permit,
        left: usize,
        refusal: Refusal,
    },
    Closed,
}

/// A request without a reply.
#[derive(Debug)]
#[must_use = "the client waits for a reply"]
pub struct Permit {
    cookie: u64,
    offset: u64,
    len: usize,
    is_read: bool,
}

impl Permit {
    /// Length of the data of a read or write in bytes.
    pub fn data_bytes(&self) -> usize {
        self.len
    }
}

/// Input that the driver handles.
#[derive(Debug)]
pub enum Event {
    /// A write waits for `len` bytes of memory: call [`Connection::receive_into`].
    Memory {
        /// Length of the data in bytes.
        len: usize,
    },
    /// A command.
    Command(Permit, Command),
    /// The client has ended the connection: reply to its commands, send the output, then close it.
    Disconnect,
}

/// A violation of the protocol that ends the connection, because no request can be told from the bytes that follow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Unknown flags of the client.
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    /// No option at the start of an option.
    #[error("an option starts with {0:#018x}")]
    OptionMagic(u64),
    /// No request at the start of a request.
    #[error("a request starts with {0:#010x}")]
    RequestMagic(u32),
    /// An export that does not exist, in the option that has no error reply.
    #[error("the client selected an unknown export")]
    UnknownExport,
}

impl Connection {
    /// Starts a connection, with the greeting as its first output.
    pub fn new(export: Arc<Export>) -> Connection {
        let mut output = SendQueue::default();
        handshake::greet(&mut output);
        Connection {
            export,
            negotiated: Negotiated::default(),
            state: State::ClientFlags,
            input: InputBuffer::default(),
            output,
            in_flight: 0,
            in_flight_bytes: 0,
            messages: Watermark::default(),
        }
    }

    /// Whether the handshake has ended.
    pub fn is_transmitting(&self) -> bool {
        matches!(self.state, State::Request | State::Data { .. } | State::SkipData { .. })
    }

    /// Whether all requests have replies.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Returns the size of the data of requests without a reply, and of replies that are not completely sent.
    pub fn held_bytes(&self) -> usize {
        self.in_flight_bytes + self.output.payload_bytes()
    }

    /// Whether requests or replies use so much memory that no more requests must be read.
    pub fn is_full(&self) -> bool {
        // The data of a request that was accepted is always received.
        if matches!(self.state, State::Data { .. } | State::SkipData { .. }) {
            return false;
        }
        self.in_flight >= MAX_REQUESTS
            || self.in_flight_bytes + self.output.pending_bytes() > MAX_BYTES
            || self.output.pending_header_bytes() > MAX_HEADER_BYTES
    }

    /// Returns the obligations of the client.
    pub fn outstanding(&self) -> Outstanding {
        Outstanding {
            moved_bytes: self.input.received_bytes() + self.output.sent_bytes(),
            pdus: self.messages,
            output: self.output.bytes(),
            transfers: Watermark::default(),
        }
    }

    /// Adds the destinations of the next bytes: memory of a write, then `overflow`.
    pub fn fill_receive_plan<'a>(&'a mut self, overflow: &'a mut [u8], plan: &mut ReceivePlan<'a>) {
        if let State::Data { buffer: Some(buffer), filled, .. } = &mut self.state {
            let left = buffer.len() - *filled;
            let planned = left.min(MAX_DESTINATION_BYTES);
            let mut count = 0;
            for (slice, len) in buffer.io_slices_mut(*filled, planned).take(MAX_DESTINATION_SLICES) {
                plan.push(slice);
                count += len;
            }
            if count < left {
                return;
            }
        }
        plan.push(IoSliceMut::new(overflow));
    }

    /// Records `n` bytes that were received into the plan.
    pub fn handle_received(&mut self, n: usize) {
        let mut direct = 0;
        if let State::Data { buffer: Some(buffer), filled, .. } = &mut self.state {
            direct = n.min(buffer.len() - *filled);
            *filled += direct;
        }
        self.input.received(n, direct, 0..n - direct);
    }

    /// Copies unread bytes out of the overflow, so that the driver can reuse it.
    pub fn defer_input(&mut self, overflow: &[u8]) {
        self.input.defer(overflow);
    }

    /// Handles received bytes. `None`: more must arrive.
    ///
    /// # Errors
    /// The connection must be closed.
    pub fn poll(&mut self, overflow: &[u8]) -> Result<Option<Event>, ProtocolError> {
        loop {
            let result = self.step(overflow);
            match result {
                Ok(Step::Continue) => {}
                Ok(Step::Event(event)) => return Ok(Some(event)),
                Ok(Step::NeedMoreData) => return Ok(None),
                Err(error) => {
                    self.close();
                    return Err(error);
                }
            }
        }
    }

    fn step(&mut self, overflow: &[u8]) -> Result<Step, ProtocolError> {
        match &mut self.state {
            State::ClientFlags => self.take_flags(overflow),
            State::Option => self.take_option(overflow),
            State::OptionData { .. } => self.take_option_data(overflow),
            State::Request => self.take_request(overflow),
            State::Data { .. } => Ok(self.take_data(overflow)),
            State::SkipOption { option, left } => {
                let option = *option;
                if !skip(&mut self.input, left) {
                    return Ok(Step::NeedMoreData);
                }
                handshake::refuse(&mut self.output, option, handshake::too_big(option));
                self.finish_message(State::Option);
                Ok(Step::Continue)
            }
            State::SkipData { left, .. } => {
                if !skip(&mut self.input, left) {
                    return Ok(Step::NeedMoreData);
                }
                if let State::SkipData { permit, refusal, .. } = self.finish_message(State::Request) {
                    self.refuse(permit, refusal);
                }
                Ok(Step::Continue)
            }
            State::Closed => {
                self.input.discard();
                Ok(Step::NeedMoreData)
            }
        }
    }

    /// Takes the header of the next message once it is complete.
    fn collect<const LEN: usize>(&mut self, overflow: &[u8]) -> Option<[u8; LEN]> {
        let is_complete = self.input.collect_header(overflow, LEN);
        if self.input.is_mid_header() {
            self.messages.expected = self.messages.done + 1;
        }
        let header = *self.input.header().first_chunk().filter(|_| is_complete)?;
        self.input.take_header(LEN);
        Some(header)
    }

    /// Ends a message and returns its state.
    fn finish_message(&mut self, next: State) -> State {
        self.messages.done = self.messages.expected;
        std::mem::replace(&mut self.state, next)
    }

    fn take_flags(&mut self, overflow: &[u8]) -> Result<Step, ProtocolError> {
        let Some(flags) = self.collect(overflow) else { return Ok(Step::NeedMoreData) };
        let flags = u32::from_be_bytes(flags);
        if !self.negotiated.handle_flags(flags) {
            return Err(ProtocolError::ClientFlags(flags));
        }
        self.finish_message(State::Option);
        Ok(Step::Continue)
    }

    fn take_option(&mut self, overflow: &[u8]) -> Result<Step, ProtocolError> {
        let Some(header) = self.collect(overflow) else { return Ok(Step::NeedMoreData) };
        let header = OptionHeader::decode(&header);
        if header.magic.0 != OPTION_MAGIC {
            return Err(ProtocolError::OptionMagic(header.magic.0));
        }
        let (option, len) = (header.option.0, header.len.0 as usize);
        self.state = if header.len.0 <= MAX_OPTION_BYTES {
            State::OptionData { option, len, data: Vec::with_capacity(len) }
        } else if option == OptionCode::ExportName.code() {
            return Err(ProtocolError::UnknownExport);
        } else {
            State::SkipOption { option, left: len }
        };
        Ok(Step::Continue)
    }

    fn take_option_data(&mut self, overflow: &[u8]) -> Result<Step, ProtocolError> {
        let State::OptionData { option, len, data } = &mut self.state else { return Ok(Step::Continue) };
        let unread = self.input.unread(overflow);
        let count = unread.len().min(*len - data.len());
        data.extend_from_slice(&unread[..count]);
        if count > 0 {
            self.input.consume(count);
        }
        if data.len() < *len {
            return Ok(Step::NeedMoreData);
        }
        let (option, data) = (*option, std::mem::take(data));
        match self.negotiated.handle_option(option, &data, &self.export, &mut self.output) {
            Next::Options => self.finish_message(State::Option),
            Next::Transmission => self.finish_message(State::Request),
            Next::Close if option == OptionCode::ExportName.code() => {
                return Err(ProtocolError::UnknownExport);
            }
            Next::Close => {
                self.finish_message(State::Closed);
                return Ok(Step::Event(Event::Disconnect));
            }
        };
        Ok(Step::Continue)
    }

    fn take_request(&mut self, overflow: &[u8]) -> Result<Step, ProtocolError> {
        let Some(header) = self.collect(overflow) else { return Ok(Step::NeedMoreData) };
        let header = RequestHeader::decode(&header);
        if header.magic.0 != REQUEST_MAGIC {
            return Err(ProtocolError::RequestMagic(header.magic.0));
        }
        let is_write = header.command.0 == CommandCode::Write.code();
        let is_read = header.command.0 == CommandCode::Read.code();
        let parsed = request::parse(&header, &self.export, &self.negotiated);
        let len = if parsed.is_ok() && (is_write || is_read) { header.len.0 as usize } else { 0 };
        let permit = Permit { cookie: header.cookie.0, offset: header.offset.0, len, is_read };
        match parsed {
            Ok(Parsed::Disconnect) => {
                self.finish_message(State::Closed);
                return Ok(Step::Event(Event::Disconnect));
            }
            Ok(Parsed::Command(Command::Write { lba, blocks, fua, .. })) => {
                self.accept(&permit);
                self.state = State::Data { permit, lba, blocks, fua, buffer: None, filled: 0 };
                return Ok(Step::Event(Event::Memory { len }));
            }
            Ok(Parsed::Command(command)) => {
                self.accept(&permit);
                self.finish_message(State::Request);
                return Ok(Step::Event(Event::Command(permit, command)));
            }
            Err(refusal) => {
                self.accept(&permit);
                if is_write {
                    self.state = State::SkipData { permit, left: header.len.0 as usize, refusal };
                } else {
                    self.finish_message(State::Request);
                    self.refuse(permit, refusal);
                }
            }
        }
        Ok(Step::Continue)
    }

    /// Provides the memory of a write after [`Event::Memory`]; `buffer` has the requested length.
    pub fn receive_into(&mut self, memory: Buffer) {
        if let State::Data { buffer, .. } = &mut self.state {
            *buffer = Some(memory);
        }
    }

    fn take_data(&mut self, overflow: &[u8]) -> Step {
        let State::Data { buffer: Some(buffer), filled, .. } = &mut self.state else {
            return Step::NeedMoreData;
        };
        let unread = self.input.unread(overflow);
        let count = unread.len().min(buffer.len() - *filled);
        if count > 0 {
            buffer.copy_in(*filled, &unread[..count]);
            self.input.consume(count);
            *filled += count;
        }
        if *filled < buffer.len() {
            return Step::NeedMoreData;
        }
        match self.finish_message(State::Request) {
            State::Data { permit, lba, blocks, fua, buffer: Some(data), .. } => {
                Step::Event(Event::Command(permit, Command::Write { lba, blocks, data, fua }))
            }
            state => unreachable!("{state:?} has no data"),
        }
    }

    fn accept(&mut self, permit: &Permit) {
        self.messages.expected = self.messages.done + 1;
        self.in_flight += 1;
        self.in_flight_bytes += permit.len;
    }

    fn end(&mut self, permit: &Permit) {
        self.in_flight -= 1;
        self.in_flight_bytes -= permit.len;
    }

    /// Queues the reply to a request that succeeded without data.
    pub fn complete(&mut self, permit: Permit) {
        self.end(&permit);
        if permit.is_read && self.negotiated.structured {
            return self.push_chunk(permit.cookie, chunk::NONE, 0);
        }
        self.push_simple(permit.cookie, 0);
    }

    /// Queues the reply to a read, which has as many bytes as requested.
    pub fn complete_read(&mut self, permit: Permit, data: Payload) {
        self.end(&permit);
        if self.negotiated.structured {
            let offset = permit.offset.to_be_bytes();
            self.push_chunk(permit.cookie, chunk::OFFSET_DATA, offset.len() + data.len());
            self.output.push::<8>(&offset, Some(data));
        } else {
            self.push_simple(permit.cookie, 0);
            self.output.push::<0>(&[], Some(data));
        }
    }

    /// Queues the reply to a request for the allocation, with at least one extent.
    pub fn complete_status(&mut self, permit: Permit, extents: &[Extent]) {
        self.end(&permit);
        let id = ALLOCATION_ID.to_be_bytes();
        self.push_chunk(permit.cookie, chunk::BLOCK_STATUS, id.len() + extents.len() * Descriptor::LEN);
        self.output.push::<4>(&id, None);
        for extent in extents {
            // At most the length of the request, which has 32 bits.
            let len = extent.blocks * u64::from(self.export.info.block_size);
            let flags = if extent.is_hole { allocation::HOLE | allocation::ZERO } else { 0 };
            let descriptor = Descriptor { len: Be(len as u32), flags: Be(flags) };
            self.output.push::<{ Descriptor::LEN }>(&descriptor.encode(), None);
        }
    }

    /// Queues the reply to a request that the volume has failed.
    pub fn fail(&mut self, permit: Permit, error: &VolumeError) {
        self.refuse(permit, (request::error_code(error), error.to_string()));
    }

    fn refuse(&mut self, permit: Permit, (code, message): Refusal) {
        self.end(&permit);
        if !self.negotiated.structured {
            return self.push_simple(permit.cookie, code.code());
        }
        let message: String = message.chars().take(MAX_MESSAGE_CHARS).collect();
        let header = ErrorChunk { error: Be(code.code()), len: Be(message.len() as u16) };
        self.push_chunk(permit.cookie, chunk::ERROR, ErrorChunk::LEN + message.len());
        self.output.push::<{ ErrorChunk::LEN }>(&header.encode(), None);
        self.output.push::<0>(message.as_bytes(), None);
    }

    fn push_simple(&mut self, cookie: u64, error: u32) {
        let header = SimpleReply { magic: Be(SIMPLE_REPLY_MAGIC), error: Be(error), cookie: Be(cookie) };
        self.output.push::<{ SimpleReply::LEN }>(&header.encode(), None);
    }

    /// Queues the header of the only chunk of a reply.
    fn push_chunk(&mut self, cookie: u64, kind: u16, len: usize) {
        let header = Chunk {
            magic: Be(CHUNK_MAGIC),
            flags: Be(CHUNK_FLAG_DONE),
            kind: Be(kind),
            cookie: Be(cookie),
            len: Be(len as u32),
        };
        self.output.push::<{ Chunk::LEN }>(&header.encode(), None);
    }

    /// Whether there is output.
    pub fn wants_transmit(&self) -> bool {
        !self.output.is_empty()
    }

    /// Adds the next output to a plan.
    pub fn fill_transmit_plan<'a>(&'a self, plan: &mut TransmitPlan<'a>) {
        self.output.fill_plan(plan);
    }

    /// Removes `n` sent bytes, and passes completely sent data to `release`.
    pub fn handle_transmitted(&mut self, n: usize, release: impl FnMut(Payload)) {
        self.output.advance(n, release);
    }

    /// Ignores all further input. Returns the memory of a write that has not arrived completely.
    pub fn close(&mut self) -> Option<Buffer> {
        self.input.discard();
        let (buffer, permit) = match self.finish_message(State::Closed) {
            State::Data { permit, buffer, .. } => (buffer, Some(permit)),
            State::SkipData { permit, .. } => (None, Some(permit)),
            _ => (None, None),
        };
        // The client gets no reply to a request that it has not sent completely.
        permit.iter().for_each(|permit| self.end(permit));
        buffer
    }
}

/// Result of one step.
enum Step {
    Continue,
    Event(Event),
    NeedMoreData,
}

/// Skips unread bytes. Returns `false` if more must arrive.
fn skip(input: &mut InputBuffer<{ RequestHeader::LEN }>, left: &mut usize) -> bool {
    let count = input.unread_len().min(*left);
    input.consume(count);
    *left -= count;
    *left == 0
}

/// Maximum number of requests in flight.
pub(crate) const MAX_REQUESTS: usize = 128;
/// Size of data in flight and of output, in bytes, above which no more requests are read: less than the largest
/// request, so that two of these use less than the pool of the server.
const MAX_BYTES: usize = 16 << 20;
/// The same for output that is not data.
const MAX_HEADER_BYTES: usize = 64 << 10;
/// Maximum length of an error message.
const MAX_MESSAGE_CHARS: usize = 256;

#[cfg(test)]
mod tests;
