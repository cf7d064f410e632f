//! Stories of a client and a mock target.

mod after;
mod classes;
mod flush;
mod identity;
mod io;
mod loss;
mod misdeeds;
mod rest;
mod retry;
mod setup;

use std::time::{Duration, Instant};

use isolane_memory::Buffer;

use super::{Client, Wait};
use crate::mock::{PATIENCE, Script, Target};
use crate::options::{Hold, Mode, Options, Reconnect};
use crate::request::{Completion, Request};

/// Options whose times fit a test.
fn options() -> Options {
    Options {
        mode: Mode::Sleep,
        depth: 32,
        keep_alive: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(5),
        command_timeout: Duration::from_secs(5),
        reconnect: Reconnect {
            give_up_after: Some(Duration::from_secs(10)),
            delay_min: Duration::from_millis(5),
            delay_max: Duration::from_millis(50),
            ..Reconnect::default()
        },
        ..Options::default()
    }
}

/// Each loss counts by itself, however short the association lived: on a slow machine, connecting may take longer
/// than this.
fn giving_up_soon() -> Reconnect {
    let give_up_after = Some(Duration::from_millis(300));
    Reconnect { give_up_after, delay_max: Duration::ZERO, ..options().reconnect }
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

/// Turns until `count` completions are there, in the order of their tags.
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
    mut is_so: impl FnMut(&Client, &[Completion]) -> bool,
) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so(client, completions) {
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
