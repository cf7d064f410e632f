//! Set Features that an association needs: how many I/O queues, and which events the target tells of.

use isolane_proto::host::Data;
use isolane_wire::admin::SetFeaturesCommand;
use isolane_wire::feature::{AsyncEventConfiguration, FeatureId, NumberOfQueues};

use super::Admin;
use crate::error::{ConnectError, Step};

/// Asks for `lanes` I/O queues. Fewer than asked for is an error with the limit.
pub(crate) fn grant_io_queues(admin: &mut Admin, lanes: usize) -> Result<(), ConnectError> {
    let too_many = |granted| ConnectError::Lanes { asked: lanes, granted };
    if lanes == 0 {
        return Err(ConnectError::Unsupported("a client without a lane; ask for one at least".to_owned()));
    }
    // Both counts are 0's based (Base 1.4 §5.21.1.7).
    let zero_based = u16::try_from(lanes - 1).map_err(|_| too_many(usize::from(u16::MAX)))?;
    let wish = NumberOfQueues(0).with_submission(zero_based).with_completion(zero_based);
    let granted = NumberOfQueues(set(admin, FeatureId::NumberOfQueues, wish.0)?);
    let granted = usize::from(granted.submission().min(granted.completion())) + 1;
    if granted < lanes { Err(too_many(granted)) } else { Ok(()) }
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

fn set(admin: &mut Admin, feature: FeatureId, cdw11: u32) -> Result<u32, ConnectError> {
    let command = SetFeaturesCommand { fid: feature.code(), cdw11, ..SetFeaturesCommand::default() };
    Ok(admin.connection.command(Step::Features, command.entry(), Data::None)?.entry.dw0)
}
