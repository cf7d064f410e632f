//! Scenario tests of a client and a mock target.

mod classes;
mod external_wait;
mod faults;
mod flush;
mod identity;
mod io;
mod loss;
mod retry;
mod setup;
mod stale_associations;

use std::time::{Duration, Instant};

use isolane_memory::Buffer;

use crate::client::Client;
use crate::mock::{Script, TEST_TIMEOUT, Target};
use crate::options::{Coalesce, Mode, Options, Reconnect};
use crate::request::{Completion, Request, Wait};

/// Options whose times fit a test.
fn options() -> Options {
    Options {
        mode: Mode::Sleep,
        depth: 32,
        keep_alive: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(5),
        command_timeout: Duration::from_secs(5),
        reconnect: Reconnect {
            timeout: Some(Duration::from_secs(10)),
            min_delay: Duration::from_millis(5),
            max_delay: Duration::from_millis(50),
            ..Reconnect::default()
        },
        ..Options::default()
    }
}

/// Each loss counts separately, however short the association lived: on a slow machine, connecting may take
/// longer than this.
fn short_reconnect() -> Reconnect {
    let timeout = Some(Duration::from_millis(300));
    Reconnect { timeout, max_delay: Duration::ZERO, ..options().reconnect }
}

fn connect(target: &Target, options: Options) -> Client {
    Client::connect(&target.uri(), options).unwrap()
}

fn pair() -> (Target, Client) {
    let target = Target::start(Script::default());
    let client = connect(&target, options());
    (target, client)
}

fn buffer(bytes: usize, fill: u8) -> Buffer {
    let mut buffer = Buffer::contiguous(bytes);
    buffer.as_mut_slice().unwrap().fill(fill);
    buffer
}

fn read(lba: u64, bytes: usize) -> Request {
    Request::Read { lba, buffer: Buffer::contiguous(bytes) }
}

fn write(lba: u64, bytes: usize, fill: u8) -> Request {
    Request::Write { lba, buffer: buffer(bytes, fill), fua: false }
}

/// Turns until `count` completions have arrived, and sorts them by tag.
fn wait_for(client: &mut Client, count: usize) -> Vec<Completion> {
    let mut completions = Vec::new();
    turn_until(client, &mut completions, |_, completions| completions.len() >= count);
    completions.sort_by_key(|completion| completion.tag);
    completions
}

/// Turns until it is so, by the client or by the completions.
fn turn_until(
    client: &mut Client,
    completions: &mut Vec<Completion>,
    mut condition: impl FnMut(&Client, &[Completion]) -> bool,
) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition(client, completions) {
        assert!(Instant::now() < deadline, "nothing but {} completions came", completions.len());
        client.turn(completions, Wait::Until(Instant::now() + Duration::from_millis(5)));
    }
}

fn run(client: &mut Client, request: Request) -> Completion {
    client.submit(0, request, 0);
    wait_for(client, 1).remove(0)
}

/// Turns without expecting anything.
fn idle(client: &mut Client, time: Duration) -> Vec<Completion> {
    let deadline = Instant::now() + time;
    let mut completions = Vec::new();
    while Instant::now() < deadline {
        client.turn(&mut completions, Wait::Until(deadline));
    }
    completions
}
