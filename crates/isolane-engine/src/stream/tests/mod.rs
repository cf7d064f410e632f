//! Stream states: each row of the documented table, and random walks.

mod closing;
mod object;
mod rig;
mod table;

use std::io::ErrorKind;
use std::net::Shutdown;
use std::time::Duration;

use proptest::prelude::*;
use rig::{Rig, gone};
use rustix::net::sockopt;

#[derive(Clone, Copy, Debug)]
enum Step {
    AppWrite(usize),
    AppWriteDirect(usize),
    AppRead(usize),
    /// The application starts or ends the bypass.
    AppBypass(bool),
    AppShut,
    PeerWrite(usize),
    /// The last byte is urgent.
    PeerWriteUrgent(usize),
    PeerRead(usize),
    PeerShut,
    Poll,
    PrepareIdle,
    Kill,
    /// The engine dies after this number of actions.
    ArmFailpoint(u32),
    /// The next engine dies after this number of actions.
    ArmNextFailpoint(u32),
    /// The socket is released, used directly (bytes to write and read), and adopted again.
    Release(usize, usize),
    /// Engine and supervisor die after this number of actions: the application recovers the socket, uses it
    /// directly, and adopts it again.
    Recover(u32, usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![1usize..20, 1usize..3000, 1usize..40_000];
    prop_oneof![
        4 => len().prop_map(Step::AppWrite),
        2 => len().prop_map(Step::AppWriteDirect),
        4 => len().prop_map(Step::AppRead),
        2 => prop::bool::weighted(0.7).prop_map(Step::AppBypass),
        4 => len().prop_map(Step::PeerWrite),
        1 => len().prop_map(Step::PeerWriteUrgent),
        4 => len().prop_map(Step::PeerRead),
        10 => Just(Step::Poll),
        3 => Just(Step::PrepareIdle),
        1 => Just(Step::Kill),
        3 => (0u32..12).prop_map(Step::ArmFailpoint),
        1 => (0u32..4).prop_map(Step::ArmNextFailpoint),
        1 => (len(), len()).prop_map(|(write, read)| Step::Release(write, read)),
        1 => (0u32..20, len(), len()).prop_map(|(actions, write, read)| Step::Recover(actions, write, read)),
    ]
}

/// Fixture whose application has SO_OOBINLINE set.
fn inline(capacity: u64, buffers: Option<usize>) -> Rig {
    let mut rig = Rig::new(capacity, buffers);
    rig.release();
    sockopt::set_socket_oobinline(&rig.socket, true).unwrap();
    rig.adopt();
    rig
}

fn run(rig: &mut Rig, step: Step) {
    match step {
        Step::AppWrite(len) => drop(rig.app_write(len, false)),
        Step::AppWriteDirect(len) => drop(rig.app_write(len, true)),
        Step::AppRead(len) => drop(rig.app_read(len)),
        Step::AppBypass(bypass) => rig.app_set_bypass(bypass),
        Step::AppShut => rig.app_shut(),
        Step::PeerWrite(len) => drop(rig.peer_write(len)),
        Step::PeerWriteUrgent(len) => rig.peer_write_urgent(len),
        Step::PeerRead(len) => drop(rig.peer_read(len)),
        Step::PeerShut => drop(rig.peer.shutdown(Shutdown::Write)),
        Step::Poll => drop(rig.poll()),
        Step::PrepareIdle => rig.prepare_idle(),
        Step::Kill => rig.kill(),
        Step::ArmFailpoint(actions) => {
            rig.engine.as_ref().expect("an engine").machine.common.failpoint.set(Some(actions))
        }
        Step::ArmNextFailpoint(actions) => rig.failpoint_after = Some(actions),
        // A socket that is shut down cannot be adopted again.
        Step::Release(..) | Step::Recover(..) if rig.app.as_ref().is_some_and(|app| app.1.is_shut()) => {}
        Step::Release(write, read) => {
            rig.release();
            rig.native_write(write);
            rig.native_read(read);
            rig.adopt();
        }
        Step::Recover(actions, write, read) => {
            rig.recover(actions);
            rig.native_write(write);
            rig.native_read(read);
            rig.adopt();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn survives_engine_deaths_without_data_loss(
        steps in prop::collection::vec(step(), 0..300),
        ends in prop::collection::vec(prop_oneof![Just(Step::AppShut), Just(Step::PeerShut)], 0..2),
        later in prop::collection::vec(step(), 0..60),
        capacity in prop_oneof![Just(4096u64), Just(1 << 14), Just(1 << 16)],
        buffers in prop_oneof![8 => Just(None), 1 => Just(Some(2304)), 2 => Just(Some(20_000))],
    ) {
        let mut rig = inline(capacity, buffers);
        for step in steps.into_iter().chain(ends).chain(later) {
            run(&mut rig, step);
        }
        rig.finish();
    }

    #[test]
    fn reset_ends_with_a_prefix_and_an_error(
        steps in prop::collection::vec(step(), 0..100),
        later in prop::collection::vec(step(), 0..40),
        capacity in prop_oneof![Just(4096u64), Just(1 << 14)],
    ) {
        let mut rig = inline(capacity, None);
        steps.into_iter().for_each(|step| run(&mut rig, step));
        sockopt::set_socket_linger(&rig.peer, Some(Duration::ZERO)).unwrap();
        rig.peer = std::net::TcpStream::from(gone());
        for step in later {
            // A socket that is reset is not adopted again.
            let is_possible = !matches!(
                step,
                Step::Release(..)
                    | Step::Recover(..)
                    | Step::PeerWrite(_)
                    | Step::PeerWriteUrgent(_)
                    | Step::PeerRead(_)
            );
            if is_possible {
                run(&mut rig, step);
            }
        }
        let mut error = None;
        rig.until("the error", |rig| {
            let outcome = rig.app_read(500);
            assert!(!matches!(outcome, Ok(0)), "a reset must not look like an end");
            error = outcome.err().map(|error| error.kind()).filter(|kind| *kind != ErrorKind::WouldBlock);
            error.is_some()
        });
        prop_assert_eq!(error, Some(ErrorKind::ConnectionReset));
        rig.until("the writer's error", |rig| {
            let error = rig.app_write(100, false).err().map(|error| error.kind());
            matches!(error, Some(ErrorKind::BrokenPipe | ErrorKind::ConnectionReset))
        });
    }
}
