//! Another volume under the same namespace ID: no request goes to it, and every error names the difference.

use isolane_wire::Status;
use uuid::Uuid;

use super::*;
use crate::difference::Difference;
use crate::error::{ConnectError, RequestError};
use crate::mock::Fault;

/// Makes the mock serve another volume.
type Change = fn(&mut Script);

/// Changes that make a different volume, and the expected difference. The UUID of namespace 1 of the mock is
/// 8.
fn changes() -> [(Change, Difference); 6] {
    let uuid = |number| Some(Uuid::from_u128(number));
    [
        (|script| script.uuid = 99, Difference::Uuid(uuid(8), uuid(100))),
        (|script| script.nguid = Some(5), Difference::Nguid(None, Some(5u128.to_be_bytes()))),
        (|script| script.eui64 = Some(6), Difference::Eui64(None, Some(6u64.to_be_bytes()))),
        (|script| script.block_bytes = 4096, Difference::BlockBytes(512, 4096)),
        (|script| script.metadata_bytes = 8, Difference::MetadataBytes(0, 8)),
        (|script| script.blocks = 100, Difference::Blocks(8192, 100)),
    ]
}

/// Every request fails from now on, and names the difference.
fn fails_with(client: &mut Client, difference: Difference) {
    for request in [read(0, 4096), write(0, 4096, 1), Request::Flush] {
        let completion = run(client, request);
        let Err(RequestError::Lost(reason)) = completion.result else { panic!("{completion:?}") };
        assert!(matches!(*reason, ConnectError::VolumeChanged(found) if found == difference), "{reason}");
        assert!(reason.to_string().contains(&difference.to_string()), "{reason}");
    }
}

#[test]
fn rejects_another_volume_after_a_notice() {
    for (change, difference) in changes() {
        let (target, mut client) = pair();
        assert!(run(&mut client, write(0, 4096, 1)).result.is_ok());
        target.change_namespace(change);
        turn_until(&mut client, &mut Vec::new(), |client, _| client.is_closed());
        fails_with(&mut client, difference);
        assert_eq!(target.shared.landed.lock().clone(), [(0, 1)]);
    }
}

#[test]
fn rejects_another_volume_after_a_reconnect() {
    for (change, difference) in changes() {
        let (target, mut client) = pair();
        change(&mut target.shared.script.lock());
        target.drop_connections();
        turn_until(&mut client, &mut Vec::new(), |client, _| client.is_closed());
        fails_with(&mut client, difference);
    }
}

#[test]
fn fails_requests_in_flight_when_the_volume_changes() {
    let (target, mut client) = pair();
    target.inject(0, Fault::Silence);
    client.submit(0, read(0, 4096), 1);
    idle(&mut client, Duration::from_millis(50));
    target.change_namespace(|script| script.uuid = 99);
    let completion = wait_for(&mut client, 1).remove(0);
    let Err(RequestError::Lost(reason)) = completion.result else { panic!("{completion:?}") };
    assert!(matches!(*reason, ConnectError::VolumeChanged(Difference::Uuid(..))), "{reason}");
    assert!(completion.buffer.is_some());
}

#[test]
fn keeps_volume_that_only_grew() {
    let (target, mut client) = pair();
    target.change_namespace(|script| script.blocks *= 2);
    turn_until(&mut client, &mut Vec::new(), |client, _| client.namespace().blocks == 16_384);
    assert!(run(&mut client, read(0, 4096)).result.is_ok());
    assert!(client.is_connected());
}

#[test]
fn failed_identify_is_not_missing_descriptors() {
    let (target, mut client) = pair();
    // First after the notice, then while connecting again.
    let failed = Status::INTERNAL_ERROR.with_dnr(true);
    target.change_namespace(|script| script.descriptor_statuses.extend([failed; 2]));
    turn_until(&mut client, &mut Vec::new(), |_, _| {
        target.shared.script.lock().descriptor_statuses.is_empty()
    });
    let completion = run(&mut client, write(0, 4096, 1));
    assert!(completion.result.is_ok(), "{completion:?}");
    assert_eq!(client.namespace().uuid, Some(Uuid::from_u128(8)));
}

#[test]
fn connects_to_a_controller_that_has_no_descriptors() {
    for status in [Status::INVALID_FIELD, Status::INVALID_OPCODE] {
        let descriptor_statuses = [status.with_dnr(true)].into();
        let target = Target::start(Script { descriptor_statuses, ..Script::default() });
        assert_eq!(connect(&target, options()).namespace().uuid, None);
    }
}
