//! The data of a command capsule (TCP 1.0 §3.3.2; Fabrics 1.1 §2.3).
//!
//! Uses only the direction bits of the opcode and the SGL; the command checks the length. An error
//! here fails the command, not the connection.

use isolane_wire::opcode::DataDirection;
use isolane_wire::{Sgl, SubmissionEntry};

use super::event::{DataLocation, Transfer};
use crate::failure::Failure;

/// Classifies the data of a command whose capsule carries `in_capsule_len` bytes.
pub(crate) fn transfer(entry: &SubmissionEntry, in_capsule_len: u32) -> Transfer {
    let direction = DataDirection::of(entry.opcode, entry.fctype());
    if direction == DataDirection::None {
        return Transfer::None;
    }
    if !matches!(entry.flags.psdt(), PSDT_SGL_MPTR_BUFFER | PSDT_SGL_MPTR_SGL) {
        return invalid(Failure::Prp);
    }
    match (direction, &entry.sgl) {
        (DataDirection::Bidirectional, _) => invalid(Failure::Opcode),
        (DataDirection::HostToController, Sgl::InCapsule { offset, len }) => {
            in_capsule(*offset, *len, in_capsule_len)
        }
        (_, Sgl::Transport { .. }) if in_capsule_len > 0 => invalid(Failure::Field),
        (_, Sgl::Transport { len: 0 }) => Transfer::None,
        (DataDirection::HostToController, Sgl::Transport { len }) => {
            Transfer::FromHost { len: *len, place: DataLocation::Transport }
        }
        (DataDirection::ControllerToHost, Sgl::Transport { len }) => Transfer::ToHost { len: *len },
        _ => invalid(Failure::SglType),
    }
}

/// An in-capsule data block must cover all of the capsule's data: ICDOFF is 0.
fn in_capsule(offset: u64, len: u32, in_capsule_len: u32) -> Transfer {
    if offset != 0 {
        return invalid(Failure::SglOffset);
    }
    match len {
        _ if len != in_capsule_len => invalid(Failure::SglLength),
        0 => Transfer::None,
        _ => Transfer::FromHost { len, place: DataLocation::InCapsule },
    }
}

fn invalid(failure: Failure) -> Transfer {
    Transfer::Invalid(failure.status())
}

const PSDT_SGL_MPTR_BUFFER: u8 = 0b01;
const PSDT_SGL_MPTR_SGL: u8 = 0b10;
