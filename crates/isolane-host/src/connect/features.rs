//! Set Features during setup: the number of I/O queues, asynchronous events, and retry delays.

use std::time::Duration;

use isolane_memory::Buffer;
use isolane_proto::host::Data;
use isolane_wire::admin::SetFeaturesCommand;
use isolane_wire::feature::{AsyncEventConfiguration, FeatureId, HostBehaviorSupport, NumberOfQueues};

use super::admin::{Admin, RetryDelays};
use crate::error::{ConnectError, Step};
use crate::lane_class::LaneCounts;

/// Requests an I/O queue for each lane. If the controller grants fewer, classes shrink (see
/// [`LaneCounts::shrink_to`]). Too few for the default class, or fewer than requested without a default class, is
/// an error with the limit.
pub(crate) fn negotiate_io_queues(
    admin: &mut Admin,
    requested: LaneCounts,
) -> Result<LaneCounts, ConnectError> {
    let needed = if requested.default == 0 { requested.total() } else { requested.default };
    let too_many = |granted| ConnectError::Lanes { requested: needed, granted };
    if requested.total() == 0 {
        return Err(ConnectError::no_default_lane());
    }
    let granted = request_io_queues(admin, requested.total())?;
    let classes = requested.shrink_to(granted).ok_or_else(|| too_many(granted))?;
    if classes != requested {
        log::warn!("the controller grants {granted} I/O queues: using {classes}, requested {requested}");
    }
    Ok(classes)
}

/// Requests I/O queues and returns how many the controller grants.
fn request_io_queues(admin: &mut Admin, requested: usize) -> Result<usize, ConnectError> {
    // Both counts are 0's based (Base 1.4 §5.21.1.7), and 65,535 is not a valid count.
    let zero_based = requested.min(usize::from(u16::MAX)) as u16 - 1;
    let requested = NumberOfQueues(0).with_submission(zero_based).with_completion(zero_based);
    let granted = NumberOfQueues(set(admin, FeatureId::NumberOfQueues, requested.0)?);
    Ok(usize::from(granted.submission().min(granted.completion())) + 1)
}

/// Requests the notice of changed namespaces if the controller supports it.
pub(crate) fn enable_async_events(admin: &mut Admin) -> Result<(), ConnectError> {
    let requested = AsyncEventConfiguration(0).with_namespace_attribute(true).0 & admin.controller.oaes.0;
    if requested == 0 {
        return Ok(());
    }
    // Without notices, a changed size shows at the next connect.
    let enabled = set(admin, FeatureId::AsyncEventConfiguration, requested);
    unless_refused(admin, enabled, "no notices of changed namespaces").map(drop)
}

/// Enables the delays that a status may select (ACRE), where the controller reports any (CRDT1-3).
pub(crate) fn enable_retry_delays(admin: &mut Admin) -> Result<RetryDelays, ConnectError> {
    let delays = admin.controller.crdt.map(|crdt| Duration::from_millis(100) * u32::from(crdt));
    if delays.iter().all(Duration::is_zero) {
        return Ok(RetryDelays::default());
    }
    let behavior = HostBehaviorSupport { acre: 1, ..HostBehaviorSupport::default() };
    let mut buffer = Buffer::contiguous(HostBehaviorSupport::LEN);
    buffer.copy_in(0, &behavior.encode());
    let fid = FeatureId::HostBehaviorSupport.code();
    let command = SetFeaturesCommand { fid, ..SetFeaturesCommand::default() };
    let enabled = admin.connection.command(Step::Features, command.entry(), Data::Write(buffer));
    // Without it, no status selects a delay, and commands are retried immediately.
    Ok(unless_refused(admin, enabled, "retry delays not enabled")?
        .map_or_else(RetryDelays::default, |_| delays))
}

/// Returns `None` if the target refuses an optional feature, and logs what that means.
fn unless_refused<T>(
    admin: &Admin,
    result: Result<T, ConnectError>,
    consequence: &str,
) -> Result<Option<T>, ConnectError> {
    match result {
        Err(ConnectError::Refused { status, .. }) => {
            log::warn!("{}: {consequence}: {status}", admin.connection.address);
            Ok(None)
        }
        result => result.map(Some),
    }
}

fn set(admin: &mut Admin, feature: FeatureId, cdw11: u32) -> Result<u32, ConnectError> {
    let command = SetFeaturesCommand { fid: feature.code(), cdw11, ..SetFeaturesCommand::default() };
    Ok(admin.connection.command(Step::Features, command.entry(), Data::None)?.entry.dw0)
}
