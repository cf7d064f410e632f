//! Commands of a connected queue that are not I/O: who executes what.
//!
//! What it is: one `match` from opcode to module, and the checks that all commands share. What it is not: any
//! of the commands. Invariant: a command that fails is in the error log of its controller.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use isolane_wire::admin::{AbortCommand, AbortResponse};
use isolane_wire::fabrics::{DisconnectCommand, PropertyGetCommand, PropertySetCommand};
use isolane_wire::opcode::{AdminOpcode, FabricsType};
use isolane_wire::{Status, SubmissionEntry};

use super::association::Association;
use super::namespace::{Kind, SubsystemProfile};
use super::property::{self, Transition};
use super::{Action, ControlEvent, IoTotals, data_expected, feature, identify, log};
use crate::completion::Completion;

/// One command with what came along.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command<'a> {
    pub(super) qid: u16,
    pub(super) entry: &'a SubmissionEntry,
    /// What the host's SGL describes.
    pub(super) data_bytes: u32,
    pub(super) now: Instant,
}

/// What a command may look at beside its own controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandContext<'a> {
    /// The subsystem of the controller.
    pub(super) profile: &'a SubsystemProfile,
    /// The NVM subsystem that discovery tells of.
    pub(super) served: &'a SubsystemProfile,
    pub(super) advertise: &'a [SocketAddr],
    pub(super) generation: u64,
    pub(super) totals: IoTotals,
    pub(super) uptime: Duration,
    /// A volume could not be flushed.
    pub(super) is_degraded: bool,
}

type Events = VecDeque<ControlEvent>;

/// Executes a command, and remembers it if it fails.
pub(super) fn execute(
    association: &mut Association,
    site: &CommandContext,
    command: &Command,
    events: &mut Events,
) -> Action {
    association.status.record_traffic();
    match run(association, site, command, events) {
        Ok(action) => action,
        Err(status) => {
            association.errors.record(command.qid, command.entry, status);
            Action::Complete(Completion::failed(status))
        }
    }
}

fn run(
    association: &mut Association,
    site: &CommandContext,
    command: &Command,
    events: &mut Events,
) -> Result<Action, Status> {
    match AdminOpcode::decode(command.entry.opcode) {
        Some(AdminOpcode::Fabrics) => fabrics(association, site, command, events),
        Some(opcode) if command.qid == 0 && is_offered(opcode, site.profile.kind) => {
            association.check_ready()?;
            admin(opcode, association, site, command, events)
        }
        _ => Err(refused(Status::INVALID_OPCODE)),
    }
}

/// The admin commands of a controller; the command effects log names the same.
pub(super) fn is_offered(opcode: AdminOpcode, kind: Kind) -> bool {
    let is_common = matches!(
        opcode,
        AdminOpcode::Identify
            | AdminOpcode::GetLogPage
            | AdminOpcode::GetFeatures
            | AdminOpcode::SetFeatures
            | AdminOpcode::AsyncEventRequest
            | AdminOpcode::KeepAlive
    );
    is_common || (opcode == AdminOpcode::Abort && kind == Kind::Nvm)
}

/// The SGL has to describe what the command moves, no more and no less (SGLS bit 18 is clear).
pub(super) fn check_transfer(command: &Command) -> Result<(), Status> {
    if data_expected(command.entry).matches(command.data_bytes) {
        return Ok(());
    }
    Err(refused(Status::DATA_SGL_LENGTH_INVALID))
}

fn admin(
    opcode: AdminOpcode,
    association: &mut Association,
    site: &CommandContext,
    command: &Command,
    events: &mut Events,
) -> Result<Action, Status> {
    let entry = command.entry;
    // Fused operations are not offered (FUSES 0).
    if entry.flags.fuse() != 0 {
        return Err(refused(Status::INVALID_FIELD));
    }
    // A feature that does not exist is refused for that, whatever data it would have.
    if opcode != AdminOpcode::SetFeatures {
        check_transfer(command)?;
    }
    match opcode {
        AdminOpcode::Identify => identify::execute(association, site, entry),
        AdminOpcode::GetLogPage => log::execute(association, site, entry),
        AdminOpcode::GetFeatures => feature::read(association, site.profile, entry),
        AdminOpcode::SetFeatures => feature::write(association, site.profile, command, events),
        AdminOpcode::AsyncEventRequest => hold_async_event(association, entry, events),
        AdminOpcode::KeepAlive => Ok(keep_alive(association, command.now)),
        AdminOpcode::Abort => Ok(abort(association, entry, events)),
        _ => Err(refused(Status::INVALID_OPCODE)),
    }
}

fn keep_alive(association: &mut Association, now: Instant) -> Action {
    association.keep_alive.restart(now);
    Action::Complete(Completion::success())
}

fn hold_async_event(
    association: &mut Association,
    entry: &SubmissionEntry,
    events: &mut Events,
) -> Result<Action, Status> {
    association.events.hold(entry.cid)?;
    association.poll_events(events);
    Ok(Action::HoldAsyncEvent)
}

/// Only held Async Event Requests can be aborted: all else ends by itself, and once "aborted" is told, a
/// write must not land (Base 1.4 §5.1).
fn abort(association: &mut Association, entry: &SubmissionEntry, events: &mut Events) -> Action {
    let AbortCommand { sqid, cid } = AbortCommand::parse(entry);
    let is_aborted = sqid == 0 && association.abort_async_event(cid, events);
    Action::Complete(Completion::with_dw0(AbortResponse(0).with_not_aborted(!is_aborted).0))
}

fn fabrics(
    association: &mut Association,
    site: &CommandContext,
    command: &Command,
    events: &mut Events,
) -> Result<Action, Status> {
    let entry = command.entry;
    match (FabricsType::decode(entry.fctype()), command.qid) {
        // A queue is connected once (Fabrics 1.1 §3.3).
        (Some(FabricsType::Connect), _) => Err(refused(Status::COMMAND_SEQUENCE_ERROR)),
        (Some(FabricsType::Disconnect), _) => disconnect(command),
        (Some(FabricsType::PropertyGet), 0) => {
            check_transfer(command)?;
            let cap = property::cap(site.profile);
            let value = association.registers.property(&PropertyGetCommand::parse(entry), cap)?;
            Ok(Action::Complete(PropertyGetCommand::completion(value).into()))
        }
        (Some(FabricsType::PropertySet), 0) => {
            check_transfer(command)?;
            set_property(association, &PropertySetCommand::parse(entry), command.now, events)
        }
        _ => Err(refused(Status::INVALID_OPCODE)),
    }
}

/// Deletes an I/O queue; an admin queue ends with its connection (Fabrics 1.1 §3.6).
fn disconnect(command: &Command) -> Result<Action, Status> {
    check_transfer(command)?;
    if DisconnectCommand::parse(command.entry).recfmt != 0 {
        return Err(refused(Status::CONNECT_INCOMPATIBLE_FORMAT));
    }
    if command.qid == 0 {
        return Err(refused(Status::INVALID_QUEUE_TYPE));
    }
    Ok(Action::Disconnect(Completion::success()))
}

fn set_property(
    association: &mut Association,
    command: &PropertySetCommand,
    now: Instant,
    events: &mut Events,
) -> Result<Action, Status> {
    let id = association.id;
    let transition = association.registers.set_property(command, association.has_io_queues())?;
    association.keep_alive.restart(now);
    match transition {
        Transition::None => {}
        Transition::Shutdown => events.push_back(ControlEvent::Shutdown { id }),
        Transition::CloseIoQueues => {
            association.abort_async_events(events);
            events.push_back(ControlEvent::CloseIoQueues { id });
        }
        Transition::Reset => {
            association.abort_async_events(events);
            association.reset();
        }
    }
    association.publish_ready();
    Ok(Action::Complete(Completion::success()))
}

/// The same command would fail again.
pub(super) fn refused(status: Status) -> Status {
    status.with_dnr(true)
}
