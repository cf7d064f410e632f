//! The table of `docs/ARCHITECTURE.md`, row by row and in any order.

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
    AppWritePast(usize),
    AppRead(usize),
    /// The application wants to receive itself, or not.
    AppPast(bool),
    AppShut,
    PeerWrite(usize),
    /// The last of them is urgent.
    PeerWriteUrgent(usize),
    PeerRead(usize),
    PeerShut,
    Look,
    Rest,
    Kill,
    /// The engine dies after so many more things.
    Doom(u32),
    /// The next engine dies after so many things.
    DoomNext(u32),
    /// The application takes the socket back, writes and reads so much itself, and has it adopted again.
    HandBack(usize, usize),
    /// The engine dies after so many things, and there is no next: the application takes the socket back itself,
    /// goes on with it, and has it adopted again.
    TakeBack(u32, usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![1usize..20, 1usize..3000, 1usize..40_000];
    prop_oneof![
        4 => len().prop_map(Step::AppWrite),
        2 => len().prop_map(Step::AppWritePast),
        4 => len().prop_map(Step::AppRead),
        2 => prop::bool::weighted(0.7).prop_map(Step::AppPast),
        4 => len().prop_map(Step::PeerWrite),
        1 => len().prop_map(Step::PeerWriteUrgent),
        4 => len().prop_map(Step::PeerRead),
        10 => Just(Step::Look),
        3 => Just(Step::Rest),
        1 => Just(Step::Kill),
        3 => (0u32..12).prop_map(Step::Doom),
        1 => (0u32..4).prop_map(Step::DoomNext),
        1 => (len(), len()).prop_map(|(write, read)| Step::HandBack(write, read)),
        1 => (0u32..20, len(), len()).prop_map(|(things, write, read)| Step::TakeBack(things, write, read)),
    ]
}

/// A rig whose application reads urgent bytes among the others also while it has the socket.
fn inline(capacity: u64, buffers: Option<usize>) -> Rig {
    let mut rig = Rig::new(capacity, buffers);
    rig.hand_back();
    sockopt::set_socket_oobinline(&rig.socket, true).unwrap();
    rig.adopt();
    rig
}

fn run(rig: &mut Rig, step: Step) {
    match step {
        Step::AppWrite(len) => drop(rig.app_write(len, false)),
        Step::AppWritePast(len) => drop(rig.app_write(len, true)),
        Step::AppRead(len) => drop(rig.app_read(len)),
        Step::AppPast(wants) => rig.app_want_past(wants),
        Step::AppShut => rig.app_shut(),
        Step::PeerWrite(len) => drop(rig.peer_write(len)),
        Step::PeerWriteUrgent(len) => rig.peer_write_urgent(len),
        Step::PeerRead(len) => drop(rig.peer_read(len)),
        Step::PeerShut => drop(rig.peer.shutdown(Shutdown::Write)),
        Step::Look => drop(rig.look()),
        Step::Rest => rig.rest(),
        Step::Kill => rig.kill(),
        Step::Doom(things) => rig.engine.as_ref().expect("one").machine.fuse.set(Some(things)),
        Step::DoomNext(things) => rig.lives = Some(things),
        // Who has shut down has nothing to go on with.
        Step::HandBack(..) | Step::TakeBack(..) if rig.app.as_ref().is_some_and(|app| app.1.is_shut()) => {}
        Step::HandBack(write, read) => {
            rig.hand_back();
            rig.native_write(write);
            rig.native_read(read);
            rig.adopt();
        }
        Step::TakeBack(things, write, read) => {
            rig.take_back(things);
            rig.native_write(write);
            rig.native_read(read);
            rig.adopt();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn no_byte_is_lost_doubled_or_out_of_order_whenever_an_engine_dies(
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
        rig.settle();
    }

    #[test]
    fn after_a_reset_what_was_read_is_a_beginning_and_then_there_is_an_error(
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
                Step::HandBack(..)
                    | Step::TakeBack(..)
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
            assert!(!matches!(outcome, Ok(0)), "a reset is no end");
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
