//! Data of commands of the control path.

use isolane_memory::Buffer;
use isolane_proto::target::{DataLocation, Permit};

use crate::lane::Lane;

/// The data of the control path is small and of known length, so it uses no memory of the pool.
pub(super) fn take_small_data(lane: &mut Lane, permit: Permit, len: u32, place: DataLocation) {
    let buffer = Buffer::contiguous(len as usize);
    match place {
        DataLocation::InCapsule => lane.conn.receive_into(permit, buffer),
        DataLocation::Transport => lane.conn.request_data(permit, buffer),
    }
}
