//! Get Features and Set Features (Base 1.4 §5.14, §5.21).
//!
//! Nothing is saved (ONCS bit 4 is clear).
//!
//! Invariant: the controller acts on the value that it reports.

use isolane_wire::Status;
use isolane_wire::admin::{GetFeaturesCommand, NSID_ALL, Select, SetFeaturesCommand};
use isolane_wire::feature::{
    Arbitration, AsyncEventConfiguration, ErrorRecovery, FeatureId, HostBehaviorSupport,
    HostIdentifierFormat, InterruptCoalescing, InterruptVector, NumberOfQueues, PowerManagement,
    TemperatureThreshold, VolatileWriteCache, WriteAtomicity,
};

use super::Action;
use super::association::{ALL_SENSORS, Association, Features};
use super::command::CommandContext;
use super::namespace::SubsystemKind;
use crate::completion::Completion;
use crate::failure::Failure;

/// The features of a kind of controller.
fn offered(fid: u8, kind: SubsystemKind) -> Result<FeatureId, Status> {
    let feature = FeatureId::decode(fid).ok_or(Failure::Field.status())?;
    let is_common = matches!(feature, FeatureId::AsyncEventConfiguration | FeatureId::KeepAliveTimer);
    if is_common || kind == SubsystemKind::Nvm { Ok(feature) } else { Err(Failure::Field.status()) }
}

/// Executes Get Features.
pub(super) fn get(context: &mut CommandContext) -> Result<Action, Status> {
    let command = GetFeaturesCommand::parse(context.entry);
    let feature = offered(command.fid, context.profile.kind)?;
    if command.sel != Select::Current.code() {
        return Err(Failure::Field.status());
    }
    let data = match feature {
        // Over Fabrics, the identifier has 128 bits and is the one of the Connect (Fabrics 1.1 §4).
        FeatureId::HostIdentifier if HostIdentifierFormat(command.cdw11).exhid() => {
            context.association.host.hostid.to_vec()
        }
        FeatureId::HostBehaviorSupport => {
            let acre = u8::from(context.association.features.acre);
            HostBehaviorSupport { acre, ..HostBehaviorSupport::default() }.encode().to_vec()
        }
        _ => {
            let value = value(context.association, feature, command.cdw11)?;
            return Ok(Action::Complete(Completion::with_dw0(value)));
        }
    };
    Ok(Action::CompleteWithData(data, Completion::success()))
}

fn value(association: &mut Association, feature: FeatureId, cdw11: u32) -> Result<u32, Status> {
    let features = &mut association.features;
    Ok(match feature {
        FeatureId::Arbitration => features.arbitration.0,
        FeatureId::PowerManagement => PowerManagement(0).0,
        FeatureId::TemperatureThreshold if TemperatureThreshold(cdw11).tmpsel() != ALL_SENSORS => {
            (*features.temperature(TemperatureThreshold(cdw11))?).into()
        }
        FeatureId::ErrorRecovery => features.error_recovery.0,
        FeatureId::VolatileWriteCache if features.has_volatile_cache => {
            VolatileWriteCache(0).with_wce(association.status.is_write_cache_enabled()).0
        }
        FeatureId::NumberOfQueues => features.queues().0,
        FeatureId::InterruptCoalescing => InterruptCoalescing(0).0,
        FeatureId::InterruptVector => InterruptVector(0).with_iv(InterruptVector(cdw11).iv()).with_cd(true).0,
        FeatureId::WriteAtomicity => features.atomicity.0,
        FeatureId::AsyncEventConfiguration => features.events_enabled.0,
        FeatureId::KeepAliveTimer => association.keep_alive.kato_ms(),
        _ => return Err(Failure::Field.status()),
    })
}

/// Executes Set Features.
pub(super) fn set(context: &mut CommandContext) -> Result<Action, Status> {
    let command = SetFeaturesCommand::parse(context.entry);
    let feature = offered(command.fid, context.profile.kind)?;
    if command.save {
        return Err(Failure::FeatureSave.status());
    }
    if ![0, NSID_ALL].contains(&command.nsid) && feature != FeatureId::ErrorRecovery {
        return Err(Failure::FeatureNamespace.status());
    }
    match feature {
        FeatureId::HostIdentifier => return Err(Failure::Sequence.status()),
        FeatureId::InterruptCoalescing | FeatureId::InterruptVector => {
            return Err(Failure::FeatureChange.status());
        }
        _ => {}
    }
    context.check_transfer()?;
    apply(context, feature, command.cdw11)
}

fn apply(context: &mut CommandContext, feature: FeatureId, cdw11: u32) -> Result<Action, Status> {
    let association = &mut *context.association;
    let features = &mut association.features;
    match feature {
        FeatureId::Arbitration => features.arbitration = Arbitration(cdw11),
        // Power state 0 is the only one (NPSS 0).
        FeatureId::PowerManagement if PowerManagement(cdw11).ps() == 0 => {}
        FeatureId::TemperatureThreshold => {
            let threshold = TemperatureThreshold(cdw11);
            *features.temperature(threshold)? = threshold.tmpth();
        }
        // Deallocated blocks are readable (NSFEAT bit 2 is clear), so DULBE cannot be set.
        FeatureId::ErrorRecovery if !ErrorRecovery(cdw11).dulbe() => {
            features.error_recovery = ErrorRecovery(0).with_tler(ErrorRecovery(cdw11).tler());
        }
        FeatureId::VolatileWriteCache => return set_write_cache(association, VolatileWriteCache(cdw11)),
        FeatureId::NumberOfQueues => {
            // Only before the first I/O queue (Base 1.4 §5.21.1.7).
            if association.has_io_queues() {
                return Err(Failure::Sequence.status());
            }
            association.features.grant_queues(NumberOfQueues(cdw11))?;
            let granted = association.features.queues();
            return Ok(Action::Complete(Completion::with_dw0(granted.0)));
        }
        FeatureId::WriteAtomicity => features.atomicity = WriteAtomicity(0).with_dn(cdw11 & 1 == 1),
        FeatureId::AsyncEventConfiguration => set_events(features, AsyncEventConfiguration(cdw11))?,
        FeatureId::KeepAliveTimer => association.keep_alive.set_kato(cdw11, context.now),
        FeatureId::HostBehaviorSupport => set_host_behavior(association, context.data)?,
        _ => return Err(Failure::Field.status()),
    }
    Ok(Action::Complete(Completion::success()))
}

/// Disabling the cache affects later writes immediately, and a flush makes earlier writes durable.
/// Every such command requests a flush, even if the cache is off already, because an earlier flush
/// may have failed or be in progress.
fn set_write_cache(association: &mut Association, value: VolatileWriteCache) -> Result<Action, Status> {
    if !association.features.has_volatile_cache {
        return Err(Failure::Field.status());
    }
    association.status.set_write_cache(value.wce());
    let completion = Completion::success();
    Ok(if value.wce() { Action::Complete(completion) } else { Action::Flush(completion) })
}

/// A host can only enable what Identify offers: the retry delays.
fn set_host_behavior(association: &mut Association, data: &[u8]) -> Result<(), Status> {
    let behavior = HostBehaviorSupport::decode_prefix(data).ok_or(Failure::SglLength.status())?;
    let HostBehaviorSupport { acre: acre @ 0..=1, etdas: 0, lbafee: 0 } = behavior else {
        return Err(Failure::Field.status());
    };
    association.features.acre = acre == 1;
    association.status.set_retry_delays(acre == 1);
    Ok(())
}

/// SMART warnings can be enabled but never occur; other events must be offered in OAES.
fn set_events(features: &mut Features, config: AsyncEventConfiguration) -> Result<(), Status> {
    if config.with_smart(0).0 & !features.events_offered.0 != 0 {
        return Err(Failure::Field.status());
    }
    features.events_enabled = config;
    Ok(())
}
