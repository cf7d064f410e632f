//! Property Get and Property Set: the controller registers over Fabrics (Fabrics 1.1 §3.4, §3.5).

use super::fabrics_entry;
use crate::{CompletionEntry, SubmissionEntry, opcode::FabricsType};

bits! {
    /// ATTRIB of a property command (byte 40).
    pub struct Attributes(u32) {
        /// Size: 000b is 4 bytes, 001b is 8.
        size / with_size: u8 = [2:0],
    }
}

/// Width of the property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PropertySize {
    /// 4 bytes.
    Bytes4,
    /// 8 bytes.
    Bytes8,
    /// A reserved code.
    Reserved(u8),
}

impl PropertySize {
    fn decode(code: u8) -> Self {
        match code {
            0 => Self::Bytes4,
            1 => Self::Bytes8,
            _ => Self::Reserved(code),
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Bytes4 => 0,
            Self::Bytes8 => 1,
            Self::Reserved(code) => code,
        }
    }
}

/// Property Get; the response carries the value in dwords 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PropertyGetCommand {
    /// Width of the property.
    pub size: PropertySize,
    /// OFST: property, see [`crate::registers`].
    pub offset: u32,
}

impl PropertyGetCommand {
    /// Encodes the command.
    pub fn entry(&self) -> SubmissionEntry {
        SubmissionEntry {
            cdw10: Attributes(0).with_size(self.size.code()).0,
            cdw11: self.offset,
            ..fabrics_entry(FabricsType::PropertyGet)
        }
    }

    /// Decodes the command.
    pub fn parse(entry: &SubmissionEntry) -> Self {
        Self { size: PropertySize::decode(Attributes(entry.cdw10).size()), offset: entry.cdw11 }
    }

    /// Encodes the successful response; the queue sets CID and SQHD.
    pub fn completion(value: u64) -> CompletionEntry {
        let [dw0, dw1] = dwords(value);
        CompletionEntry { dw0, dw1, ..CompletionEntry::default() }
    }
}

/// Property Set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PropertySetCommand {
    /// Width of the property.
    pub size: PropertySize,
    /// OFST: property, see [`crate::registers`].
    pub offset: u32,
    /// VALUE; a 4-byte property uses the lower half only.
    pub value: u64,
}

impl PropertySetCommand {
    /// Encodes the command.
    pub fn entry(&self) -> SubmissionEntry {
        let [cdw12, cdw13] = dwords(self.value);
        SubmissionEntry {
            cdw10: Attributes(0).with_size(self.size.code()).0,
            cdw11: self.offset,
            cdw12,
            cdw13,
            ..fabrics_entry(FabricsType::PropertySet)
        }
    }

    /// Decodes the command.
    pub fn parse(entry: &SubmissionEntry) -> Self {
        Self {
            size: PropertySize::decode(Attributes(entry.cdw10).size()),
            offset: entry.cdw11,
            value: u64::from(entry.cdw13) << 32 | u64::from(entry.cdw12),
        }
    }
}

fn dwords(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}
