//! Set Features that an association needs: how many I/O queues, which events the target tells of, and retry
//! delays.

use std::time::Duration;

use isolane_memory::Buffer;
use isolane_proto::host::Data;
use isolane_wire::admin::SetFeaturesCommand;
use isolane_wire::feature::{AsyncEventConfiguration, FeatureId, HostBehaviorSupport, NumberOfQueues};

use super::Admin;
use crate::classes::Classes;
use crate::client::RetryDelays;
use crate::error::{ConnectError, Step};

/// Asks for an I/O queue for each lane. If there are fewer, classes shrink (see [`Classes::granted`]); too
/// few for the default class, or fewer than asked for where that has none here, is an error with the limit.
pub(crate) fn grant_io_queues(admin: &mut Admin, wish: Classes) -> Result<Classes, ConnectError> {
    let needed = if wish.default == 0 { wish.total() } else { wish.default };
    let too_many = |granted| ConnectError::Lanes { asked: needed, granted };
    if wish.total() == 0 {
        return Err(ConnectError::without_default_lane());
    }
    let granted = ask_for_io_queues(admin, wish.total())?;
    let classes = wish.granted(granted).ok_or_else(|| too_many(granted))?;
    if classes != wish {
        log::warn!("the controller grants {granted} lanes: there are {classes}, asked for were {wish}");
    }
    Ok(classes)
}

/// Asks for `wish` I/O queues and tells how many there are, if that is fewer.
fn ask_for_io_queues(admin: &mut Admin, wish: usize) -> Result<usize, ConnectError> {
    // Both counts are 0's based (Base 1.4 §5.21.1.7), and 65,535 is no count.
    let zero_based = wish.min(usize::from(u16::MAX)) as u16 - 1;
    let wish = NumberOfQueues(0).with_submission(zero_based).with_completion(zero_based);
    let granted = NumberOfQueues(set(admin, FeatureId::NumberOfQueues, wish.0)?);
    Ok(usize::from(granted.submission().min(granted.completion())) + 1)
}

/// Asks for the notice that namespaces changed, where the controller has it.
pub(crate) fn ask_for_async_events(admin: &mut Admin) -> Result<(), ConnectError> {
    let wish = AsyncEventConfiguration(0).with_namespace_attribute(true).0 & admin.optional_async_events();
    if wish == 0 {
        return Ok(());
    }
    match set(admin, FeatureId::AsyncEventConfiguration, wish) {
        Ok(_) => Ok(()),
        // Without notices a changed size shows at the next connect; that is no reason to have no volume.
        Err(ConnectError::Refused { status, .. }) => {
            log::warn!("the target sends no notices of changed namespaces: {status}");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Enables the delays that a status may select (ACRE), where the controller reports any (CRDT1-3).
pub(crate) fn enable_retry_delays(admin: &mut Admin) -> Result<RetryDelays, ConnectError> {
    let delays = admin.retry_delays();
    if delays.iter().all(Duration::is_zero) {
        return Ok(RetryDelays::default());
    }
    let behavior = HostBehaviorSupport { acre: 1, ..HostBehaviorSupport::default() };
    let mut buffer = Buffer::contiguous(HostBehaviorSupport::LEN);
    buffer.place(0, &behavior.encode());
    let fid = FeatureId::HostBehaviorSupport.code();
    let command = SetFeaturesCommand { fid, ..SetFeaturesCommand::default() };
    match admin.connection.command(Step::Features, command.entry(), Data::Write(buffer)) {
        Ok(_) => Ok(delays),
        // Without it no status selects a delay, and commands are sent again at once.
        Err(ConnectError::Refused { status, .. }) => {
            log::warn!("{}: retry delays not enabled: {status}", admin.connection.address());
            Ok(RetryDelays::default())
        }
        Err(error) => Err(error),
    }
}

fn set(admin: &mut Admin, feature: FeatureId, cdw11: u32) -> Result<u32, ConnectError> {
    let command = SetFeaturesCommand { fid: feature.code(), cdw11, ..SetFeaturesCommand::default() };
    Ok(admin.connection.command(Step::Features, command.entry(), Data::None)?.entry.dw0)
}
