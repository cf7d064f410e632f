//! Which kind of objects makes a plan of what.

use std::os::fd::OwnedFd;

use isolane_attach::control::{Object, Open};

use super::Denied;
use super::request::{NO_DESCRIPTORS, short};
use crate::Config;
use crate::service::Plan;
use crate::stream::{self, Refusal};
use crate::volume::Volumes;

/// What it takes to have this object. `descriptor` is what came with the request: the socket of a stream.
///
/// # Errors
/// [`Denied::Refused`], if the kind of objects does not want to; [`Denied::Short`], if the system does not;
/// [`Denied::Hostile`], if no client of ours would ask for it. Its places are checked where it is built.
pub(super) fn plan(
    open: &Open,
    descriptor: Option<OwnedFd>,
    volumes: &Volumes,
    config: &Config,
) -> Result<Plan, Denied> {
    match (&open.object, descriptor) {
        (Object::Stream(place), Some(socket)) => {
            stream::adopt(socket, *place, config).map_err(|refusal| match refusal {
                Refusal::System(error) => short(error),
                refusal => Denied::Refused(refusal.to_string()),
            })
        }
        (Object::Stream(_), None) => Err(Denied::Hostile("a stream without its socket".into())),
        (Object::Volume { uri, details }, _) => volumes.plan(uri, details).map_err(Denied::Refused),
    }
}

/// What it takes to go on with an object that an engine before this one had, from what it has left with the
/// supervisor ([`Plan::left`]).
///
/// # Errors
/// [`Denied`]: then its session is dropped.
pub(super) fn resume(
    open: &Open,
    note: &[u8],
    descriptors: Vec<OwnedFd>,
    config: &Config,
) -> Result<Plan, Denied> {
    match &open.object {
        Object::Stream(_) => {
            let socket = descriptors.into_iter().next();
            let missing = || format!("the engine has no descriptor left for it{NO_DESCRIPTORS}");
            stream::resume(socket.ok_or_else(missing), note, config).map_err(Denied::Hostile)
        }
        // Its application opens it anew.
        Object::Volume { .. } => Err(Denied::Hostile("nothing is kept of volumes".into())),
    }
}
