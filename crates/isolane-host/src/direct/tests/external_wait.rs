//! Several clients in one thread that sleeps for all of them at once.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::mock::TEST_TIMEOUT;
use crate::options::IoChoice;

/// Turns all; sleeps if all rest, until one of them is due.
fn serve(clients: &mut [Client], completions: &mut [Vec<Completion>]) -> bool {
    for (client, completions) in clients.iter_mut().zip(completions) {
        client.turn(completions, Wait::None);
    }
    let due: Option<Vec<_>> = clients.iter_mut().map(Client::prepare_wait).collect();
    let has_rested = due.is_some();
    if let Some(until) = due.and_then(|due| due.into_iter().min()) {
        let descriptors: Vec<_> = clients.iter().filter_map(Client::wait_fd).collect();
        let mut watched: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let left = until.saturating_duration_since(Instant::now());
        poll(&mut watched, Some(&Timespec::try_from(left).unwrap())).unwrap();
    }
    clients.iter_mut().for_each(Client::finish_wait);
    has_rested
}

#[test]
fn shared_wait_misses_no_completion() {
    let options = || Options { io: IoChoice::Epoll, ..options() };
    let targets = [Target::start(Script::default()), Target::start(Script::default())];
    let mut clients = [connect(&targets[0], options()), connect(&targets[1], options())];
    let mut completions = [Vec::new(), Vec::new()];
    let mut waits = 0;
    for round in 0..200u64 {
        let at = (round % 2) as usize;
        clients[at].submit(0, write(round, 512, round as u8), round);
        let end = Instant::now() + TEST_TIMEOUT;
        while completions[at].is_empty() {
            waits += usize::from(serve(&mut clients, &mut completions));
            assert!(Instant::now() < end, "no answer in round {round}");
        }
        let completion = completions[at].pop().unwrap();
        assert!(completion.tag == round && completion.result.is_ok());
    }
    assert!(waits > 0);
    // Nothing but their own housekeeping keeps the targets from ending the associations.
    let end = Instant::now() + 3 * Duration::from_secs(2);
    while Instant::now() < end {
        serve(&mut clients, &mut completions);
    }
    assert!(clients.iter().all(Client::is_connected));
    let keep_alives = |target: &Target| target.shared.keep_alives.load(std::sync::atomic::Ordering::Relaxed);
    assert!(targets.iter().all(|target| keep_alives(target) >= 2));
}

#[test]
fn client_with_unsent_data_does_not_wait() {
    let target = Target::start(Script::default());
    let mut client = connect(&target, Options { io: IoChoice::Epoll, ..options() });
    let mut completions = Vec::new();
    while client.prepare_wait().is_none() {
        client.turn(&mut completions, Wait::None);
    }
    client.finish_wait();
    client.submit(0, read(0, 512), 1);
    assert!(client.prepare_wait().is_none());
}
