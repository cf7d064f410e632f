//! Generation log page of Isolane targets.
//!
//! The page is requested only from a controller with the signature in Identify Controller, and carries the
//! same signature.
//!
//! Invariant: a reply of another target is never taken for a generation.

use isolane_wire::Status;
use isolane_wire::admin::LogPage;
use isolane_wire::log::{GenerationLog, RestartLoss, SIGNATURE};
use uuid::Uuid;

use super::Admin;
use crate::error::ConnectError;
use crate::info::Generation;

/// Returns the generation of a namespace; `None` if the target reports none.
pub(crate) fn generation(admin: &mut Admin, nsid: u32) -> Result<Option<Generation>, ConnectError> {
    if !admin.has_generations() {
        return Ok(None);
    }
    let is_final = |status: Status| status.dnr() || status.is(Status::INVALID_LOG_PAGE);
    let data = match admin.log_page(LogPage::Generation, nsid, 0, GenerationLog::LEN) {
        Ok(data) => data,
        Err(ConnectError::Refused { status, .. }) if is_final(status) => return Ok(None),
        Err(error) => return Err(error),
    };
    let generation = decode(nsid, &data);
    if generation.is_none() {
        log::warn!("{}: ignoring a malformed generation page", admin.connection.address());
    }
    Ok(generation)
}

fn decode(nsid: u32, data: &[u8]) -> Option<Generation> {
    let log = GenerationLog::decode_prefix(data)?;
    let is_ours = log.signature == SIGNATURE && log.version >= GenerationLog::VERSION && log.nsid == nsid;
    let (id, loses) = (Uuid::from_bytes(log.generation), RestartLoss::decode(log.loses)?);
    (is_ours && !id.is_nil()).then_some(Generation { id, loses })
}
