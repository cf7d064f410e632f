//! Which kind of objects makes a plan of what.

use std::os::fd::OwnedFd;

use isolane_attach::control::{Object, Open};
use isolane_ring::Memory;

use super::Denied;
use crate::service::Plan;
use crate::volume::Volumes;

/// What it takes to have this object. `descriptor` is what came with the request: the socket of a stream.
///
/// # Errors
/// [`Denied::Refused`], if the system or the kind of objects does not want to; [`Denied::Hostile`], if no
/// client of ours would ask for it, for its places are outside of the memory.
pub(super) fn plan(
    open: &Open,
    _descriptor: Option<OwnedFd>,
    _memory: &Memory,
    volumes: &Volumes,
) -> Result<Plan, Denied> {
    match &open.object {
        Object::Stream(_) => Err(Denied::Refused("this engine serves no streams".into())),
        Object::Volume { uri, details } => volumes.plan(uri, details).map_err(Denied::Refused),
    }
}

/// What it takes to go on with an object that an engine before this one had, from what it has left with the
/// supervisor ([`Plan::kept`]).
///
/// # Errors
/// [`Denied`]: then its session is dropped.
pub(super) fn resume(open: &Open, _note: &[u8], _descriptors: Vec<OwnedFd>) -> Result<Plan, Denied> {
    match open.object {
        Object::Stream(_) => Err(Denied::Refused("this engine serves no streams".into())),
        // Its application opens it anew.
        Object::Volume { .. } => Err(Denied::Hostile("nothing is kept of volumes".into())),
    }
}
