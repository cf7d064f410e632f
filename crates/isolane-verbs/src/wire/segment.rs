//! A complete segment prefix: the header and the extension of its opcode.
//!
//! Invariant: a [`Segment`] is inside of its message, and its opcode, place, and payload agree.

use isolane_layout::U24;

use super::error::SegmentError;
use super::extension::{Acknowledgment, AtomicOperands, DatagramSource, LaneReport, RemoteRange, Syndrome};
use super::header::{SegmentFlags, SegmentHeader};
use super::opcode::{ExtensionKind, Opcode, Operation, Stage};

/// Maximum size of a message in bytes; longer requests continue in further messages.
pub const MAX_MESSAGE_BYTES: u32 = U24::MAX;
/// Maximum length of a header with its extension, in bytes.
pub const MAX_PREFIX_BYTES: usize = SegmentHeader::LEN + AtomicOperands::LEN;

/// A valid segment, without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Opcode.
    pub opcode: Opcode,
    /// Flags.
    pub flags: SegmentFlags,
    /// See [`SegmentHeader::credits`].
    pub credits: u16,
    /// See [`SegmentHeader::message`].
    pub message: u32,
    /// Size of the message in bytes.
    pub size: u32,
    /// Index of the receive that the request consumes, modulo 2⁸: see [`SegmentHeader::receive`].
    pub receive: u8,
    /// How often a missing receive was posted later, modulo 2⁸: see [`SegmentHeader::rnr_count`].
    pub rnr_count: u8,
    /// Offset in the message in bytes.
    pub offset: u32,
    /// Number of payload bytes.
    pub length: u32,
    /// See [`SegmentHeader::acknowledged`].
    pub acknowledged: u32,
    /// Fields that the opcode announces.
    pub extension: Extension,
}

/// Fields after the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// None.
    None,
    /// Immediate data of a SEND.
    Immediate(u32),
    /// Range of a READ, or of a WRITE with its immediate data.
    Range(RemoteRange, Option<u32>),
    /// Operands of an atomic operation.
    Atomic(AtomicOperands),
    /// Value that an atomic operation found.
    Found(u64),
    /// Result of a message: syndrome, timer, and index of the missing receive.
    Acknowledgment(Syndrome, u8, u8),
    /// Source of a datagram, and its immediate data.
    Datagram(DatagramSource, Option<u32>),
    /// Report about a lane that has ended.
    LaneReport(LaneReport),
}

/// An acknowledgment without content.
impl Default for Segment {
    fn default() -> Segment {
        Segment {
            opcode: Opcode::Acknowledge,
            flags: SegmentFlags(0),
            credits: 0,
            message: 0,
            size: 0,
            receive: 0,
            rnr_count: 0,
            offset: 0,
            length: 0,
            acknowledged: 0,
            extension: Extension::None,
        }
    }
}

impl Segment {
    /// Returns the length of header and extension of a segment from its first byte.
    pub fn prefix_len(opcode: u8) -> Result<usize, SegmentError> {
        let opcode = Opcode::decode(opcode).ok_or(SegmentError::Opcode(opcode))?;
        let immediate = if opcode.has_immediate() { IMMEDIATE_LEN } else { 0 };
        let extension = match opcode.operation().extension() {
            ExtensionKind::None => 0,
            ExtensionKind::Range => RemoteRange::LEN,
            ExtensionKind::Atomic => AtomicOperands::LEN,
            ExtensionKind::Found | ExtensionKind::Acknowledgment | ExtensionKind::Datagram => {
                Acknowledgment::LEN
            }
            ExtensionKind::LaneReport => LaneReport::LEN,
        };
        Ok(SegmentHeader::LEN + extension + immediate)
    }

    /// Decodes a prefix as [`Segment::decode_from`].
    ///
    /// # Errors
    /// If it is not valid.
    pub fn decode(bytes: &[u8], max_length: u32) -> Result<Segment, SegmentError> {
        let mut segment = Segment::default();
        segment.decode_from(bytes, max_length)?;
        Ok(segment)
    }

    /// Decodes a prefix of [`Segment::prefix_len`] bytes into this segment, and checks it against itself and the negotiated
    /// limit of payload bytes in a segment.
    ///
    /// # Errors
    /// If it is not valid. Do not use the segment then.
    #[inline]
    pub fn decode_from(&mut self, bytes: &[u8], max_length: u32) -> Result<(), SegmentError> {
        let code = bytes.first().copied().unwrap_or(u8::MAX);
        let opcode = Opcode::decode(code).ok_or(SegmentError::Opcode(code))?;
        let header = SegmentHeader::decode_prefix(bytes).ok_or(SegmentError::Opcode(code))?;
        let SegmentHeader { flags, credits, message, receive, length, acknowledged, .. } = header;
        let (size, offset, rnr_count) = (header.size.get(), header.offset.get(), header.rnr_count);
        if flags.0 & SegmentFlags::RESERVED != 0 {
            return Err(SegmentError::Flags(flags.0));
        }
        check_place(opcode, size, offset, length)?;
        if length > max_length {
            return Err(SegmentError::TooLong { length, limit: max_length });
        }
        (self.opcode, self.flags, self.credits, self.message) = (opcode, flags, credits, message);
        (self.size, self.receive, self.rnr_count) = (size, receive, rnr_count);
        (self.offset, self.length, self.acknowledged) = (offset, length, acknowledged);
        self.extension.decode_from(opcode, &bytes[SegmentHeader::LEN..])
    }

    /// Decodes a datagram. Returns its segment and its payload.
    ///
    /// # Errors
    /// If it is not a complete datagram.
    pub fn decode_datagram(bytes: &[u8]) -> Result<(Segment, &[u8]), SegmentError> {
        let code = bytes.first().copied().unwrap_or(u8::MAX);
        let short = || SegmentError::Opcode(code);
        let prefix = bytes.get(..Segment::prefix_len(code)?).ok_or_else(short)?;
        let segment = Segment::decode(prefix, MAX_DATAGRAM_BYTES as u32)?;
        let payload = &bytes[prefix.len()..];
        let is_datagram = segment.opcode.operation() == Operation::Datagram;
        if is_datagram && payload.len() == segment.length as usize {
            Ok((segment, payload))
        } else {
            Err(short())
        }
    }

    /// Encodes header and extension into `bytes`, and returns their length.
    pub fn encode_to(&self, bytes: &mut [u8; MAX_PREFIX_BYTES]) -> usize {
        let header = SegmentHeader {
            opcode: self.opcode.code(),
            flags: self.flags,
            credits: self.credits,
            message: self.message,
            size: U24::new(self.size),
            receive: self.receive,
            offset: U24::new(self.offset),
            rnr_count: self.rnr_count,
            length: self.length,
            acknowledged: self.acknowledged,
        };
        bytes[..SegmentHeader::LEN].copy_from_slice(&header.encode());
        SegmentHeader::LEN + self.extension.encode_to(&mut bytes[SegmentHeader::LEN..])
    }
}

/// Checks that the place of a segment is the one that its opcode names.
fn check_place(opcode: Opcode, size: u32, offset: u32, length: u32) -> Result<(), SegmentError> {
    let stage = opcode.stage();
    if !opcode.operation().has_stages() && opcode.operation() != Operation::Datagram {
        return match length {
            0 => Ok(()),
            _ => Err(SegmentError::Payload { opcode: opcode.name(), length }),
        };
    }
    let is_inside = offset.checked_add(length).is_some_and(|end| {
        // An empty segment is only ever a whole empty message.
        end <= size && (length > 0 || size == 0) && Stage::of(offset, end, size) == stage
    });
    if is_inside { Ok(()) } else { Err(SegmentError::Place { offset, length, size, stage: stage.name() }) }
}

impl Extension {
    #[inline]
    fn decode_from(&mut self, opcode: Opcode, bytes: &[u8]) -> Result<(), SegmentError> {
        let short = || SegmentError::Opcode(opcode.code());
        let immediate = |at: usize| {
            if opcode.has_immediate() {
                bytes.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| Some(u32::from_le_bytes(*bytes)))
            } else {
                Some(None)
            }
        };
        *self = match opcode.operation().extension() {
            ExtensionKind::None => {
                immediate(0).ok_or_else(short)?.map_or(Extension::None, Extension::Immediate)
            }
            ExtensionKind::Range => {
                let range = RemoteRange::decode_prefix(bytes).ok_or_else(short)?;
                Extension::Range(range, immediate(RemoteRange::LEN).ok_or_else(short)?)
            }
            ExtensionKind::Atomic => {
                Extension::Atomic(AtomicOperands::decode_prefix(bytes).ok_or_else(short)?)
            }
            ExtensionKind::Found => {
                Extension::Found(u64::from_le_bytes(*bytes.first_chunk().ok_or_else(short)?))
            }
            ExtensionKind::Acknowledgment => {
                let fields = Acknowledgment::decode_prefix(bytes).ok_or_else(short)?;
                let syndrome = Syndrome::decode(fields.syndrome);
                let syndrome = syndrome.ok_or(SegmentError::Syndrome(fields.syndrome))?;
                Extension::Acknowledgment(syndrome, fields.timer, fields.receive)
            }
            ExtensionKind::Datagram => {
                let source = DatagramSource::decode_prefix(bytes).ok_or_else(short)?;
                Extension::Datagram(source, immediate(DatagramSource::LEN).ok_or_else(short)?)
            }
            ExtensionKind::LaneReport => {
                Extension::LaneReport(LaneReport::decode_prefix(bytes).ok_or_else(short)?)
            }
        };
        Ok(())
    }

    fn encode_to(&self, bytes: &mut [u8]) -> usize {
        let mut len = 0;
        let mut put = |part: &[u8]| {
            bytes[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        };
        let immediate = match self {
            Extension::None => None,
            Extension::Immediate(immediate) => Some(*immediate),
            Extension::Range(range, immediate) => {
                put(&range.encode());
                *immediate
            }
            Extension::Atomic(operands) => {
                put(&operands.encode());
                None
            }
            Extension::Found(value) => {
                put(&value.to_le_bytes());
                None
            }
            Extension::Acknowledgment(syndrome, timer, receive) => {
                let fields = Acknowledgment { syndrome: syndrome.code(), timer: *timer, receive: *receive };
                put(&fields.encode());
                None
            }
            Extension::Datagram(source, immediate) => {
                put(&source.encode());
                *immediate
            }
            Extension::LaneReport(report) => {
                put(&report.encode());
                None
            }
        };
        if let Some(immediate) = immediate {
            put(&immediate.to_le_bytes());
        }
        len
    }
}

/// Longest payload of a datagram in bytes.
pub const MAX_DATAGRAM_BYTES: usize = 4096;
/// Length of immediate data in bytes.
const IMMEDIATE_LEN: usize = 4;

#[cfg(test)]
mod tests;
