//! Which kind of objects makes a plan of what.

use std::os::fd::OwnedFd;

use isolane_attach::control::{Object, Open};
use isolane_ring::Memory;

use super::Denied;
use crate::service::Plan;

/// What it takes to have this object. `descriptor` is what came with the request: the socket of a stream.
///
/// # Errors
/// [`Denied::Refused`], if the system or the kind of objects does not want to; [`Denied::Hostile`], if no
/// client of ours would ask for it, for its places are outside of the memory.
pub(super) fn plan(open: &Open, _descriptor: Option<OwnedFd>, _memory: &Memory) -> Result<Plan, Denied> {
    let what = match open.object {
        Object::Stream(_) => "streams",
        Object::Volume { .. } => "volumes",
    };
    Err(Denied::Refused(format!("this engine serves no {what}")))
}
