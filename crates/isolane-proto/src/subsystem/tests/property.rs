//! Enabling, resetting, shutting down.

use super::*;
use isolane_wire::registers::{Cap, Vs};

fn shutdown() -> Cc {
    Cc::enabled().with_shn(Cc::SHN_NORMAL)
}

#[test]
fn properties_report_capabilities_and_version() {
    let mut harness = Harness::new();
    let id = harness.admin();
    let cap = Cap(harness.property(id, offset::CAP, PropertySize::Bytes8).unwrap());
    assert_eq!((cap.mqes(), cap.cqr(), cap.css(), cap.ams()), (255, true, 1, 0));
    assert_eq!((cap.mpsmin(), cap.mpsmax(), cap.dstrd(), cap.nssrs(), cap.crms()), (0, 0, 0, false, 0));
    assert_eq!(harness.property(id, offset::VS, PropertySize::Bytes4), Ok(Vs::V1_4.0.into()));
}

#[test]
fn rejects_property_of_wrong_size_or_offset() {
    let mut harness = Harness::new();
    let id = harness.admin();
    let invalid = Err(Status::INVALID_FIELD.with_dnr(true));
    for (offset, size) in [
        (offset::CAP, PropertySize::Bytes4),
        (offset::VS, PropertySize::Bytes8),
        (offset::CC, PropertySize::Reserved(7)),
        (offset::NSSR, PropertySize::Bytes4),
        (offset::CRTO, PropertySize::Bytes4),
        (u32::MAX, PropertySize::Bytes8),
    ] {
        assert_eq!(harness.property(id, offset, size), invalid, "{offset:#x}");
    }
}

#[test]
fn only_cc_is_writable() {
    let mut harness = Harness::new();
    let id = harness.admin();
    let invalid = rejected_with(Status::INVALID_FIELD);
    for (offset, size) in [
        (offset::CAP, PropertySize::Bytes8),
        (offset::CSTS, PropertySize::Bytes4),
        (offset::NSSR, PropertySize::Bytes4),
        (offset::CC, PropertySize::Bytes8),
    ] {
        let entry = PropertySetCommand { size, offset, value: 1 }.entry();
        assert_eq!(harness.complete(id, entry), invalid);
    }
    assert!(!harness.csts(id).rdy());
}

#[test]
fn accepts_linux_cc_sequence() {
    let mut harness = Harness::new();
    let id = harness.admin();
    harness.set_cc(id, Cc::enabled().with_en(false));
    assert!(!harness.csts(id).rdy());
    harness.set_cc(id, Cc::enabled());
    assert_eq!(harness.csts(id), Csts(0).with_rdy(true));
    assert_eq!(harness.property(id, offset::CC, PropertySize::Bytes4), Ok(Cc::enabled().0.into()));
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
        let mut harness = Harness::new();
        let id = harness.admin();
        harness.set_cc(id, cc);
        assert_eq!(harness.csts(id), Csts(0).with_cfs(true), "{cc:?}");
        harness.set_cc(id, Cc(0));
        harness.set_cc(id, Cc::enabled());
        assert_eq!(harness.csts(id), Csts(0).with_rdy(true));
    }
}

#[test]
fn discovery_accepts_zero_entry_sizes() {
    let mut harness = Harness::new();
    let id = harness.connect(&MockConnect::discovery()).unwrap().id;
    harness.set_cc(id, Cc(0).with_en(true));
    assert!(harness.csts(id).rdy());
}

#[test]
fn admin_commands_wait_for_enable() {
    let mut harness = Harness::new();
    let id = harness.admin();
    let early = rejected_with(Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(harness.complete(id, isolane_wire::admin::keep_alive()), early);
    harness.set_cc(id, Cc::enabled());
    assert_eq!(harness.complete(id, isolane_wire::admin::keep_alive()), Completion::success());
    harness.set_cc(id, Cc(0));
    assert_eq!(harness.complete(id, isolane_wire::admin::keep_alive()), early);
}

#[test]
fn shutdown_completes_after_flush() {
    let mut harness = Harness::new();
    let connected = harness.connect(&MockConnect::admin()).unwrap();
    let id = connected.id;
    harness.set_cc(id, Cc::enabled());
    assert_eq!(harness.set_cc(id, shutdown()), Completion::success());
    assert_eq!(harness.events(), [ControlEvent::Shutdown(id)]);
    assert_eq!(harness.csts(id), Csts(0).with_rdy(true).with_shst(Csts::SHST_OCCURRING));
    assert!(!connected.status.is_ready(), "no I/O is taken any more");

    harness.set_cc(id, shutdown());
    assert_eq!(harness.events(), [], "asking again starts nothing again");
    harness.port.handle_flushed(id, true);
    assert_eq!(harness.csts(id), Csts(0).with_rdy(true).with_shst(Csts::SHST_COMPLETE));
}

/// Otherwise, one failed volume would end every shutdown of every host with CFS.
#[test]
fn shutdown_completes_after_failed_flush() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.set_cc(id, shutdown());
    harness.port.handle_flushed(id, false);
    assert_eq!(harness.csts(id).shst(), Csts::SHST_COMPLETE);
    assert!(!harness.csts(id).cfs());
}

#[test]
fn accepts_linux_shutdown_sequence() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.io_queue(id, 1).unwrap();
    harness.drop_queue(id, 1);
    assert_eq!(harness.events(), [], "the association lives on");
    harness.set_cc(id, shutdown());
    harness.port.handle_flushed(id, true);
    assert_eq!(harness.csts(id).shst(), Csts::SHST_COMPLETE);
}

#[test]
fn ready_drops_after_all_io_ends() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.io_queue(id, 1).unwrap();
    harness.io_queue(id, 2).unwrap();
    harness.set_cc(id, Cc(0));
    assert_eq!(harness.events(), [ControlEvent::CloseIoQueues(id)]);
    harness.drop_queue(id, 1);
    harness.port.handle_disconnected(id, 2);
    assert!(harness.csts(id).rdy());
    assert_eq!(harness.set_cc(id, Cc::enabled()), Completion::failed(Status::COMMAND_SEQUENCE_ERROR));
    harness.port.handle_drained(id, 2);
    assert!(!harness.csts(id).rdy());

    harness.set_cc(id, Cc::enabled());
    assert!(harness.io_queue(id, 1).is_ok());
}

#[test]
fn ignores_flush_completed_after_reset() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.set_cc(id, shutdown());
    harness.set_cc(id, Cc(0));
    harness.port.handle_flushed(id, true);
    assert_eq!(harness.csts(id), Csts(0));
}

#[test]
fn stale_flush_does_not_finish_shutdown() {
    let mut harness = Harness::new();
    let id = harness.ready();
    harness.set_cc(id, shutdown());
    harness.set_cc(id, Cc(0));
    harness.set_cc(id, Cc::enabled());
    harness.set_cc(id, shutdown());
    harness.port.handle_flushed(id, true);
    assert_eq!(harness.csts(id).shst(), Csts::SHST_OCCURRING, "later writes can still be volatile");
    harness.port.handle_flushed(id, true);
    assert_eq!(harness.csts(id).shst(), Csts::SHST_COMPLETE);
}

#[test]
fn handles_enable_with_shutdown() {
    let mut harness = Harness::new();
    let id = harness.admin();
    harness.set_cc(id, shutdown());
    assert_eq!(harness.csts(id).shst(), Csts::SHST_OCCURRING);
    assert_eq!(harness.events(), [ControlEvent::Shutdown(id)]);
}
