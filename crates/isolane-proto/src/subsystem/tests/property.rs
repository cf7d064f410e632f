//! Enabling, resetting, shutting down.

use super::*;
use isolane_wire::registers::{Cap, Vs};

fn shutdown() -> Cc {
    Cc::enabled().with_shn(Cc::SHN_NORMAL)
}

#[test]
fn properties_tell_capabilities_and_version() {
    let mut world = World::new();
    let id = world.admin();
    let cap = Cap(world.property(id, offset::CAP, PropertySize::Bytes8).unwrap());
    assert_eq!((cap.mqes(), cap.cqr(), cap.css(), cap.ams()), (255, true, 1, 0));
    assert_eq!((cap.mpsmin(), cap.mpsmax(), cap.dstrd(), cap.nssrs(), cap.crms()), (0, 0, 0, false, 0));
    assert_eq!(world.property(id, offset::VS, PropertySize::Bytes4), Ok(Vs::V1_4.0.into()));
}

#[test]
fn rejects_property_of_wrong_size_or_offset() {
    let mut world = World::new();
    let id = world.admin();
    let invalid = Err(Status::INVALID_FIELD.with_dnr(true));
    for (offset, size) in [
        (offset::CAP, PropertySize::Bytes4),
        (offset::VS, PropertySize::Bytes8),
        (offset::CC, PropertySize::Reserved(7)),
        (offset::NSSR, PropertySize::Bytes4),
        (offset::CRTO, PropertySize::Bytes4),
        (u32::MAX, PropertySize::Bytes8),
    ] {
        assert_eq!(world.property(id, offset, size), invalid, "{offset:#x}");
    }
}

#[test]
fn only_cc_is_writable() {
    let mut world = World::new();
    let id = world.admin();
    let invalid = refused(Status::INVALID_FIELD);
    for (offset, size) in [
        (offset::CAP, PropertySize::Bytes8),
        (offset::CSTS, PropertySize::Bytes4),
        (offset::NSSR, PropertySize::Bytes4),
        (offset::CC, PropertySize::Bytes8),
    ] {
        let entry = PropertySetCommand { size, offset, value: 1 }.entry();
        assert_eq!(world.complete(id, entry), invalid);
    }
    assert!(!world.csts(id).rdy());
}

#[test]
fn accepts_linux_cc_sequence() {
    let mut world = World::new();
    let id = world.admin();
    world.set_cc(id, Cc::enabled().with_en(false));
    assert!(!world.csts(id).rdy());
    world.set_cc(id, Cc::enabled());
    assert_eq!(world.csts(id), Csts(0).with_rdy(true));
    assert_eq!(world.property(id, offset::CC, PropertySize::Bytes4), Ok(Cc::enabled().0.into()));
}

#[test]
fn unsupported_cc_is_fatal_until_reset() {
    for cc in [
        Cc::enabled().with_css(6),
        Cc::enabled().with_mps(1),
        Cc::enabled().with_ams(1),
        Cc::enabled().with_iosqes(7),
        Cc::enabled().with_iocqes(0),
    ] {
        let mut world = World::new();
        let id = world.admin();
        world.set_cc(id, cc);
        assert_eq!(world.csts(id), Csts(0).with_cfs(true), "{cc:?}");
        world.set_cc(id, Cc(0));
        world.set_cc(id, Cc::enabled());
        assert_eq!(world.csts(id), Csts(0).with_rdy(true));
    }
}

#[test]
fn discovery_accepts_zero_entry_sizes() {
    let mut world = World::new();
    let id = world.connect(&MockConnect::discovery()).unwrap().id;
    world.set_cc(id, Cc(0).with_en(true));
    assert!(world.csts(id).rdy());
}

#[test]
fn admin_commands_wait_for_enable() {
    let mut world = World::new();
    let id = world.admin();
    let early = refused(Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(world.complete(id, isolane_wire::admin::keep_alive()), early);
    world.set_cc(id, Cc::enabled());
    assert_eq!(world.complete(id, isolane_wire::admin::keep_alive()), Completion::success());
    world.set_cc(id, Cc(0));
    assert_eq!(world.complete(id, isolane_wire::admin::keep_alive()), early);
}

#[test]
fn shutdown_is_complete_only_after_the_flush() {
    let mut world = World::new();
    let connected = world.connect(&MockConnect::admin()).unwrap();
    let id = connected.id;
    world.set_cc(id, Cc::enabled());
    assert_eq!(world.set_cc(id, shutdown()), Completion::success());
    assert_eq!(world.events(), [ControlEvent::Shutdown { id }]);
    assert_eq!(world.csts(id), Csts(0).with_rdy(true).with_shst(Csts::SHST_OCCURRING));
    assert!(!connected.status.is_ready(), "no I/O is taken any more");

    world.set_cc(id, shutdown());
    assert_eq!(world.events(), [], "asking again starts nothing again");
    world.port.handle_flushed(id, true);
    assert_eq!(world.csts(id), Csts(0).with_rdy(true).with_shst(Csts::SHST_COMPLETE));
}

/// A volume that failed for good would otherwise make every shutdown of every host end in CFS.
#[test]
fn shutdown_completes_after_failed_flush() {
    let mut world = World::new();
    let id = world.ready();
    world.set_cc(id, shutdown());
    world.port.handle_flushed(id, false);
    assert_eq!(world.csts(id).shst(), Csts::SHST_COMPLETE);
    assert!(!world.csts(id).cfs());
}

#[test]
fn accepts_linux_shutdown_sequence() {
    let mut world = World::new();
    let id = world.ready();
    world.io_queue(id, 1).unwrap();
    world.drop_queue(id, 1);
    assert_eq!(world.events(), [], "the association lives on");
    world.set_cc(id, shutdown());
    world.port.handle_flushed(id, true);
    assert_eq!(world.csts(id).shst(), Csts::SHST_COMPLETE);
}

#[test]
fn ready_drops_after_all_io_ends() {
    let mut world = World::new();
    let id = world.ready();
    world.io_queue(id, 1).unwrap();
    world.io_queue(id, 2).unwrap();
    world.set_cc(id, Cc(0));
    assert_eq!(world.events(), [ControlEvent::CloseIoQueues { id }]);
    world.drop_queue(id, 1);
    world.port.handle_disconnected(id, 2);
    assert!(world.csts(id).rdy());
    assert_eq!(world.set_cc(id, Cc::enabled()), Completion::failed(Status::COMMAND_SEQUENCE_ERROR));
    world.port.handle_drained(id, 2);
    assert!(!world.csts(id).rdy());

    world.set_cc(id, Cc::enabled());
    assert!(world.io_queue(id, 1).is_ok());
}

#[test]
fn ignores_flush_completed_after_reset() {
    let mut world = World::new();
    let id = world.ready();
    world.set_cc(id, shutdown());
    world.set_cc(id, Cc(0));
    world.port.handle_flushed(id, true);
    assert_eq!(world.csts(id), Csts(0));
}

#[test]
fn stale_flush_does_not_finish_shutdown() {
    let mut world = World::new();
    let id = world.ready();
    world.set_cc(id, shutdown());
    world.set_cc(id, Cc(0));
    world.set_cc(id, Cc::enabled());
    world.set_cc(id, shutdown());
    world.port.handle_flushed(id, true);
    assert_eq!(
        world.csts(id).shst(),
        Csts::SHST_OCCURRING,
        "what was written between them may not be durable"
    );
    world.port.handle_flushed(id, true);
    assert_eq!(world.csts(id).shst(), Csts::SHST_COMPLETE);
}

#[test]
fn handles_enable_with_shutdown() {
    let mut world = World::new();
    let id = world.admin();
    world.set_cc(id, shutdown());
    assert_eq!(world.csts(id).shst(), Csts::SHST_OCCURRING);
    assert_eq!(world.events(), [ControlEvent::Shutdown { id }]);
}
