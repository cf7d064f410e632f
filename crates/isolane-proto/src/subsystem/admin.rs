//! Dispatch of the commands of a connected queue that are not I/O.
//!
//! One `match` from opcode to module, and the short commands.
//!
//! Invariant: a command that fails is in the error log of its controller.

use isolane_wire::Status;
use isolane_wire::admin::{AbortCommand, AbortResponse};
use isolane_wire::fabrics::{DisconnectCommand, PropertyGetCommand, PropertySetCommand};
use isolane_wire::opcode::{AdminOpcode, FabricsType};

use super::command::{CommandContext, is_offered};
use super::property::{self, Transition};
use super::{Action, ControlEvent, feature, identify, log};
use crate::completion::Completion;
use crate::failure::Failure;

/// Executes a command, and records it in the error log if it fails.
pub(super) fn execute(context: &mut CommandContext) -> Action {
    context.association.status.record_traffic();
    match run(context) {
        Ok(action) => action,
        Err(status) => {
            context.association.errors.record(context.qid, context.entry, status);
            Action::Complete(Completion::failed(status))
        }
    }
}

fn run(context: &mut CommandContext) -> Result<Action, Status> {
    match AdminOpcode::decode(context.entry.opcode) {
        Some(AdminOpcode::Fabrics) => fabrics(context),
        Some(opcode) if context.qid == 0 && is_offered(opcode, context.profile.kind) => {
            context.association.check_ready()?;
            admin(opcode, context)
        }
        _ => Err(Failure::Opcode.status()),
    }
}

fn admin(opcode: AdminOpcode, context: &mut CommandContext) -> Result<Action, Status> {
    // Fused operations are not offered (FUSES 0).
    if context.entry.flags.fuse() != 0 {
        return Err(Failure::Field.status());
    }
    // Set Features checks the data after the feature: an unknown feature has its own status.
    if opcode != AdminOpcode::SetFeatures {
        context.check_transfer()?;
    }
    match opcode {
        AdminOpcode::Identify => identify::execute(context),
        AdminOpcode::GetLogPage => log::execute(context),
        AdminOpcode::GetFeatures => feature::get(context),
        AdminOpcode::SetFeatures => feature::set(context),
        AdminOpcode::AsyncEventRequest => {
            context.association.hold_async_event(context.entry.cid, context.events)?;
            Ok(Action::HoldAsyncEvent)
        }
        AdminOpcode::KeepAlive => {
            context.association.keep_alive.restart(context.now);
            Ok(Action::Complete(Completion::success()))
        }
        AdminOpcode::Abort => Ok(abort(context)),
        _ => Err(Failure::Opcode.status()),
    }
}

/// Only held Async Event Requests can be aborted. Other commands end without help, and after
/// "aborted" was reported, a write must not reach the volume (Base 1.4 §5.1).
fn abort(context: &mut CommandContext) -> Action {
    let AbortCommand { sqid, cid } = AbortCommand::parse(context.entry);
    let is_aborted = sqid == 0 && context.association.abort_async_event(cid, context.events);
    Action::Complete(Completion::with_dw0(AbortResponse(0).with_not_aborted(!is_aborted).0))
}

fn fabrics(context: &mut CommandContext) -> Result<Action, Status> {
    match (FabricsType::decode(context.entry.fctype()), context.qid) {
        // A queue is connected once (Fabrics 1.1 §3.3).
        (Some(FabricsType::Connect), _) => Err(Failure::Sequence.status()),
        (Some(FabricsType::Disconnect), _) => disconnect(context),
        (Some(FabricsType::PropertyGet), 0) => {
            context.check_transfer()?;
            let command = PropertyGetCommand::parse(context.entry);
            let value = context.association.registers.property(&command, property::cap(context.profile))?;
            Ok(Action::Complete(PropertyGetCommand::completion(value).into()))
        }
        (Some(FabricsType::PropertySet), 0) => {
            context.check_transfer()?;
            set_property(context)
        }
        _ => Err(Failure::Opcode.status()),
    }
}

/// Deletes an I/O queue; an admin queue ends with its connection (Fabrics 1.1 §3.6).
fn disconnect(context: &CommandContext) -> Result<Action, Status> {
    context.check_transfer()?;
    if DisconnectCommand::parse(context.entry).recfmt != 0 {
        return Err(Failure::RecordFormat.status());
    }
    if context.qid == 0 {
        return Err(Failure::QueueType.status());
    }
    Ok(Action::Disconnect(Completion::success()))
}

fn set_property(context: &mut CommandContext) -> Result<Action, Status> {
    let command = PropertySetCommand::parse(context.entry);
    let (association, events) = (&mut *context.association, &mut *context.events);
    let id = association.id;
    let transition = association.registers.set_property(&command, association.has_io_queues())?;
    association.keep_alive.restart(context.now);
    match transition {
        Transition::None => {}
        Transition::Shutdown => events.push_back(ControlEvent::Shutdown(id)),
        Transition::CloseIoQueues => {
            association.abort_async_events(events);
            events.push_back(ControlEvent::CloseIoQueues(id));
        }
        Transition::Reset => {
            association.abort_async_events(events);
            association.reset();
        }
    }
    association.publish_ready();
    Ok(Action::Complete(Completion::success()))
}
