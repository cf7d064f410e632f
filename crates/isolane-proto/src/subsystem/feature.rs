//! Get Features and Set Features (Base 1.4 §5.14, §5.21).
//!
//! What it is: the value of every feature of one controller, and what a host may set it to. What it is not: a
//! store; nothing is saved (ONCS bit 4 is clear). Invariant: a value that is told is the one that is acted
//! on.

use std::collections::VecDeque;

use isolane_wire::admin::{GetFeaturesCommand, NSID_ALL, Select, SetFeaturesCommand};
use isolane_wire::feature::{
    Arbitration, AsyncEventConfiguration, ErrorRecovery, FeatureId, HostBehaviorSupport,
    HostIdentifierFormat, InterruptCoalescing, InterruptVector, NumberOfQueues, PowerManagement,
    TemperatureThreshold, VolatileWriteCache, WriteAtomicity,
};
use isolane_wire::{Status, SubmissionEntry};

use super::admin::{Command, check_transfer, refused};
use super::association::Association;
use super::identify::WARNING_TEMPERATURE_KELVIN;
use super::namespace::{Kind, SubsystemProfile};
use super::{Action, ControlEvent, DataExpected};
use crate::completion::Completion;

/// The values that no other part of a controller keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Features {
    /// Whether there was a volatile cache when the host connected.
    pub(super) has_volatile_cache: bool,
    /// Async events that this controller can report.
    pub(super) events_offered: AsyncEventConfiguration,
    queues_max: u16,
    queues_granted: u16,
    arbitration: Arbitration,
    error_recovery: ErrorRecovery,
    atomicity: WriteAtomicity,
    over_temperature_kelvin: u16,
    under_temperature_kelvin: u16,
}

impl Features {
    /// The defaults.
    pub(super) fn new(profile: &SubsystemProfile) -> Features {
        Features::defaults(profile.has_volatile_cache(), profile.events_offered(), queues_max(profile))
    }

    /// The values after a reset.
    pub(super) fn at_reset(&self) -> Features {
        Features::defaults(self.has_volatile_cache, self.events_offered, self.queues_max)
    }

    /// I/O queues that the host may connect.
    pub(super) fn queues_granted(&self) -> u16 {
        self.queues_granted
    }

    fn defaults(
        has_volatile_cache: bool,
        events_offered: AsyncEventConfiguration,
        queues_max: u16,
    ) -> Features {
        Features {
            has_volatile_cache,
            events_offered,
            queues_max,
            queues_granted: queues_max,
            arbitration: Arbitration(0).with_ab(NO_BURST_LIMIT),
            error_recovery: ErrorRecovery(0),
            atomicity: WriteAtomicity(0),
            over_temperature_kelvin: WARNING_TEMPERATURE_KELVIN,
            under_temperature_kelvin: 0,
        }
    }

    /// Grants as many pairs as the host asks for, within the limit (Base 1.4 §5.21.1.7).
    fn grant_queues(&mut self, asked: NumberOfQueues) -> Result<(), Status> {
        if asked.submission() == u16::MAX || asked.completion() == u16::MAX {
            return Err(refused(Status::INVALID_FIELD));
        }
        let pairs = asked.submission().max(asked.completion()) + 1;
        self.queues_granted = pairs.min(self.queues_max);
        Ok(())
    }

    fn queues(&self) -> NumberOfQueues {
        let granted = self.queues_granted.saturating_sub(1);
        NumberOfQueues(0).with_submission(granted).with_completion(granted)
    }

    fn temperature(&self, asked: TemperatureThreshold) -> Result<u32, Status> {
        match (asked.tmpsel(), asked.thsel()) {
            (COMPOSITE, OVER) => Ok(self.over_temperature_kelvin.into()),
            (COMPOSITE, UNDER) => Ok(self.under_temperature_kelvin.into()),
            _ => Err(refused(Status::INVALID_FIELD)),
        }
    }

    fn set_temperature(&mut self, value: TemperatureThreshold) -> Result<(), Status> {
        let threshold = match (value.tmpsel(), value.thsel()) {
            (COMPOSITE | ALL_SENSORS, OVER) => &mut self.over_temperature_kelvin,
            (COMPOSITE | ALL_SENSORS, UNDER) => &mut self.under_temperature_kelvin,
            _ => return Err(refused(Status::INVALID_FIELD)),
        };
        *threshold = value.tmpth();
        Ok(())
    }
}

/// AB: no limit.
const NO_BURST_LIMIT: u8 = 0b111;
/// TMPSEL: the composite temperature, the only one there is.
const COMPOSITE: u8 = 0;
/// TMPSEL: all sensors.
const ALL_SENSORS: u8 = 0xf;
/// THSEL: over temperature threshold.
const OVER: u8 = 0;
/// THSEL: under temperature threshold.
const UNDER: u8 = 1;
/// Bytes of the host identifier.
const HOST_IDENTIFIER_BYTES: u64 = 16;

fn queues_max(profile: &SubsystemProfile) -> u16 {
    match profile.kind {
        Kind::Nvm => profile.config.max_io_queues,
        Kind::Discovery => 0,
    }
}

/// The features of a kind of controller.
fn offered(fid: u8, kind: Kind) -> Result<FeatureId, Status> {
    let feature = FeatureId::decode(fid).ok_or(refused(Status::INVALID_FIELD))?;
    let is_common = matches!(feature, FeatureId::AsyncEventConfiguration | FeatureId::KeepAliveTimer);
    let is_nvm = matches!(
        feature,
        FeatureId::Arbitration
            | FeatureId::PowerManagement
            | FeatureId::TemperatureThreshold
            | FeatureId::ErrorRecovery
            | FeatureId::VolatileWriteCache
            | FeatureId::NumberOfQueues
            | FeatureId::InterruptCoalescing
            | FeatureId::InterruptVector
            | FeatureId::WriteAtomicity
            | FeatureId::HostBehaviorSupport
            | FeatureId::HostIdentifier
    );
    let is_offered = is_common || (is_nvm && kind == Kind::Nvm);
    if is_offered { Ok(feature) } else { Err(refused(Status::INVALID_FIELD)) }
}

/// The data that Get Features returns.
pub(super) fn data_returned(entry: &SubmissionEntry) -> DataExpected {
    match FeatureId::decode(GetFeaturesCommand::parse(entry).fid) {
        Some(FeatureId::HostIdentifier) => DataExpected::ToHost(HOST_IDENTIFIER_BYTES),
        Some(FeatureId::HostBehaviorSupport) => DataExpected::ToHost(HostBehaviorSupport::LEN as u64),
        _ => DataExpected::None,
    }
}

/// Get Features.
pub(super) fn read(
    association: &Association,
    profile: &SubsystemProfile,
    entry: &SubmissionEntry,
) -> Result<Action, Status> {
    let command = GetFeaturesCommand::parse(entry);
    let feature = offered(command.fid, profile.kind)?;
    if command.sel != Select::Current.code() {
        return Err(refused(Status::INVALID_FIELD));
    }
    if feature == FeatureId::HostIdentifier {
        return host_identifier(association, HostIdentifierFormat(command.cdw11));
    }
    if feature == FeatureId::HostBehaviorSupport {
        let none = HostBehaviorSupport { acre: 0, etdas: 0, lbafee: 0 }.encode().to_vec();
        return Ok(Action::CompleteWithData(none, Completion::success()));
    }
    let value = value(association, feature, command.cdw11)?;
    Ok(Action::Complete(Completion::with_dw0(value)))
}

fn value(association: &Association, feature: FeatureId, cdw11: u32) -> Result<u32, Status> {
    let features = &association.features;
    Ok(match feature {
        FeatureId::Arbitration => features.arbitration.0,
        FeatureId::PowerManagement => PowerManagement(0).0,
        FeatureId::TemperatureThreshold => features.temperature(TemperatureThreshold(cdw11))?,
        FeatureId::ErrorRecovery => features.error_recovery.0,
        FeatureId::VolatileWriteCache if features.has_volatile_cache => {
            VolatileWriteCache(0).with_wce(association.status.is_write_cache_enabled()).0
        }
        FeatureId::NumberOfQueues => features.queues().0,
        FeatureId::InterruptCoalescing => InterruptCoalescing(0).0,
        FeatureId::InterruptVector => InterruptVector(0).with_iv(InterruptVector(cdw11).iv()).with_cd(true).0,
        FeatureId::WriteAtomicity => features.atomicity.0,
        FeatureId::AsyncEventConfiguration => association.events.config().0,
        FeatureId::KeepAliveTimer => association.keep_alive.kato_ms(),
        _ => return Err(refused(Status::INVALID_FIELD)),
    })
}

/// Over Fabrics the identifier has 128 bits and is that of the Connect (Fabrics 1.1 §4).
fn host_identifier(association: &Association, format: HostIdentifierFormat) -> Result<Action, Status> {
    if !format.exhid() {
        return Err(refused(Status::INVALID_FIELD));
    }
    Ok(Action::CompleteWithData(association.host.hostid.to_vec(), Completion::success()))
}

/// Set Features.
pub(super) fn write(
    association: &mut Association,
    profile: &SubsystemProfile,
    command: &Command,
    events: &mut VecDeque<ControlEvent>,
) -> Result<Action, Status> {
    let set = SetFeaturesCommand::parse(command.entry);
    let feature = offered(set.fid, profile.kind)?;
    if set.save {
        return Err(refused(Status::FEATURE_NOT_SAVEABLE));
    }
    if ![0, NSID_ALL].contains(&set.nsid) && feature != FeatureId::ErrorRecovery {
        return Err(refused(Status::FEATURE_NOT_NAMESPACE_SPECIFIC));
    }
    match feature {
        FeatureId::HostIdentifier => return Err(refused(Status::COMMAND_SEQUENCE_ERROR)),
        FeatureId::InterruptCoalescing | FeatureId::InterruptVector | FeatureId::HostBehaviorSupport => {
            return Err(refused(Status::FEATURE_NOT_CHANGEABLE));
        }
        _ => {}
    }
    check_transfer(command)?;
    apply(association, feature, set.cdw11, command, events)
}

fn apply(
    association: &mut Association,
    feature: FeatureId,
    cdw11: u32,
    command: &Command,
    events: &mut VecDeque<ControlEvent>,
) -> Result<Action, Status> {
    let mut result = 0;
    match feature {
        FeatureId::Arbitration => association.features.arbitration = Arbitration(cdw11),
        FeatureId::PowerManagement => check_power_state(PowerManagement(cdw11))?,
        FeatureId::TemperatureThreshold => {
            association.features.set_temperature(TemperatureThreshold(cdw11))?
        }
        FeatureId::ErrorRecovery => set_error_recovery(association, ErrorRecovery(cdw11))?,
        FeatureId::VolatileWriteCache => return set_write_cache(association, VolatileWriteCache(cdw11)),
        FeatureId::NumberOfQueues => result = set_queues(association, NumberOfQueues(cdw11))?,
        FeatureId::WriteAtomicity => {
            association.features.atomicity = WriteAtomicity(0).with_dn(cdw11 & 1 == 1)
        }
        FeatureId::AsyncEventConfiguration => {
            set_events(association, AsyncEventConfiguration(cdw11), events)?
        }
        FeatureId::KeepAliveTimer => association.keep_alive.set_kato(cdw11, command.now),
        _ => return Err(refused(Status::INVALID_FIELD)),
    }
    Ok(Action::Complete(Completion::with_dw0(result)))
}

/// There is one power state (NPSS 0).
fn check_power_state(value: PowerManagement) -> Result<(), Status> {
    if value.ps() == 0 { Ok(()) } else { Err(refused(Status::INVALID_FIELD)) }
}

/// Deallocated blocks are readable (NSFEAT bit 2 is clear), so DULBE cannot be set.
fn set_error_recovery(association: &mut Association, value: ErrorRecovery) -> Result<(), Status> {
    if value.dulbe() {
        return Err(refused(Status::INVALID_FIELD));
    }
    association.features.error_recovery = ErrorRecovery(0).with_tler(value.tler());
    Ok(())
}

/// Turning the cache off takes effect at once for what comes, and a flush makes durable what was. That flush may
/// fail, or wait for one that an earlier command asked for, so it is asked for however the feature is.
fn set_write_cache(association: &mut Association, value: VolatileWriteCache) -> Result<Action, Status> {
    if !association.features.has_volatile_cache {
        return Err(refused(Status::INVALID_FIELD));
    }
    association.status.set_write_cache(value.wce());
    let completion = Completion::success();
    Ok(if value.wce() { Action::Complete(completion) } else { Action::Flush(completion) })
}

/// Only before the first I/O queue (Base 1.4 §5.21.1.7).
fn set_queues(association: &mut Association, asked: NumberOfQueues) -> Result<u32, Status> {
    if association.has_io_queues() {
        return Err(refused(Status::COMMAND_SEQUENCE_ERROR));
    }
    association.features.grant_queues(asked)?;
    Ok(association.features.queues().0)
}

/// SMART warnings can be asked for, they never come; other events must be offered in OAES.
fn set_events(
    association: &mut Association,
    config: AsyncEventConfiguration,
    events: &mut VecDeque<ControlEvent>,
) -> Result<(), Status> {
    let smart = AsyncEventConfiguration(0).with_smart(u8::MAX);
    let offered = association.features.events_offered.0 | smart.0;
    if config.0 & !offered != 0 {
        return Err(refused(Status::INVALID_FIELD));
    }
    association.events.set_config(config);
    association.poll_events(events);
    Ok(())
}
