//! Property Get and Property Set: the controller registers over Fabrics (Fabrics 1.1 §3.4, §3.5).

use crate::{CompletionEntry, opcode::FabricsType};
use isolane_layout::BitValue;

/// Width of the property.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PropertySize {
    /// 4 bytes.
    #[default]
    Bytes4,
    /// 8 bytes.
    Bytes8,
    /// A reserved code.
    Reserved(u8),
}

impl BitValue for PropertySize {
    fn from_bits(bits: u64) -> Self {
        match bits {
            0 => Self::Bytes4,
            1 => Self::Bytes8,
            _ => Self::Reserved(bits as u8),
        }
    }

    fn into_bits(self) -> u64 {
        match self {
            Self::Bytes4 => 0,
            Self::Bytes8 => 1,
            Self::Reserved(code) => code.into(),
        }
    }
}

command! {
    /// Property Get; the response carries the value in dwords 0 and 1.
    pub struct PropertyGetCommand: FabricsType::PropertyGet => {
        /// Width of the property.
        cdw10[2:0] => size: PropertySize,
        /// OFST: property, see [`crate::registers`].
        cdw11[31:0] => offset: u32,
    }
}

impl PropertyGetCommand {
    /// Encodes the successful response; the queue sets CID and SQHD.
    pub fn completion(value: u64) -> CompletionEntry {
        CompletionEntry { dw0: value as u32, dw1: (value >> 32) as u32, ..CompletionEntry::default() }
    }
}

command! {
    /// Property Set.
    pub struct PropertySetCommand: FabricsType::PropertySet => {
        /// Width of the property.
        cdw10[2:0] => size: PropertySize,
        /// OFST: property, see [`crate::registers`].
        cdw11[31:0] => offset: u32,
        /// VALUE; a 4-byte property uses the lower half only.
        cdw12[31:0] cdw13[31:0] => value: u64,
    }
}
