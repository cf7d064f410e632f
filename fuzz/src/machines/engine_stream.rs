//! A stream of the engine, whose application writes anything into every word that they share, at any time.
//!
//! Promised: the engine does not panic nor wait; nothing that is written makes it do to the socket what does not
//! succeed; and when it is done with the socket, whatever for, that is as it was before. The application's own
//! ends do not panic either, whatever the engine has written.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use isolane_attach::control::StreamPlace;
use isolane_attach::layout::stream as layout;
use isolane_attach::stream::{Incoming, Outgoing, ends};
use isolane_engine::service::Ready;
use isolane_engine::stream::{Kept, Machine, Stop};
use isolane_ring::mock::{self, Vandal};
use isolane_ring::{Memory, MemoryError, PAGE_SIZE, adopted};
use rustix::net::sockopt;

use crate::input::Input;

/// Decisions of an application, its peer, an engine that is killed and a vandal.
pub(crate) fn engine_stream(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut scene = Scene::new();
    for _ in 0..STEPS_MAX {
        if input.is_empty() || scene.machine.is_none() {
            break;
        }
        scene.step(&mut input);
    }
    scene.end();
}

struct Scene {
    memory: Memory,
    vandal: Vandal,
    socket: TcpStream,
    peer: TcpStream,
    incoming: Incoming,
    outgoing: Outgoing,
    kept: Kept,
    machine: Option<Machine>,
    buffer: Vec<u8>,
}

impl Scene {
    fn new() -> Scene {
        let (socket, peer) = mock::connection().expect("there are sockets");
        socket.set_nonblocking(true).expect("it is a socket");
        peer.set_nonblocking(true).expect("it is a socket");
        // Else each would keep a port for a minute.
        sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).expect("it is a socket");
        let page = PAGE_SIZE as u64;
        let memory = Memory::create("isolane-fuzz", 3 * PAGE_SIZE).expect("there is memory");
        let place = StreamPlace { block: 0, rx: page, rx_capacity: page, tx: 2 * page, tx_capacity: page };
        let (incoming, outgoing, _) = ends(&memory, &place).expect("a place of our own choice");
        let kept = Kept::of(socket.as_fd(), place).expect("it can be adopted");
        let mut scene = Scene {
            vandal: Vandal::of(&memory),
            memory,
            socket,
            peer,
            incoming,
            outgoing,
            kept,
            machine: None,
            buffer: vec![0; 3 * PAGE_SIZE],
        };
        scene.take_up();
        scene
    }

    /// The next engine, from what the supervisor has.
    fn take_up(&mut self) {
        drop(self.machine.take());
        let socket = self.socket.as_fd().try_clone_to_owned().expect("there are descriptors");
        let kept = Kept::decode(&self.kept.encode());
        self.machine = Machine::take_up(socket, &self.memory, kept).map_err(|stop| judge(&stop)).ok();
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.u8() % 24;
        let len = usize::from(input.u16()) % self.buffer.len();
        match choice {
            0..=5 => self.vandalize(input),
            6..=9 => self.look(),
            10 | 11 => self.rest(),
            12 => self.take_up(),
            13 => drop(self.peer.write(&self.buffer[..len])),
            14 => drop(self.peer.read(&mut self.buffer[..len])),
            15 => drop(self.outgoing.try_write(&self.buffer[..len])),
            16 => drop(self.incoming.try_read(&mut self.buffer[..len])),
            17 => drop(self.incoming.want_past(len.is_multiple_of(2))),
            18 => drop(self.outgoing.shut()),
            19 => drop(self.outgoing.is_ready().and(self.incoming.is_ready())),
            20 => self.receive_past(len),
            21 => self.with(|machine| {
                machine.on_ready(Ready {
                    readable: true,
                    urgent: len.is_multiple_of(3),
                    writable: true,
                    finished: len.is_multiple_of(7),
                    hung_up: len.is_multiple_of(5),
                })
            }),
            22 => self.with(|machine| machine.close(Instant::now())),
            _ => drop(self.socket.read(&mut self.buffer[..len % 50])),
        }
    }

    fn with(&mut self, act: impl FnMut(&mut Machine)) {
        self.machine.as_mut().into_iter().for_each(act);
    }

    /// What a core does with it.
    fn look(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        match machine.look() {
            Ok(looked) if looked.is_over => self.machine = None,
            Ok(_) => {}
            Err(stop) => self.stop(&stop),
        }
    }

    fn rest(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        if let Err(stop) = machine.rest() {
            self.stop(&stop);
        }
    }

    fn stop(&mut self, stop: &Stop) {
        judge(stop);
        self.with(|machine| {
            // The application may want it back, if it has not written what cannot be.
            machine.give_up();
            if matches!(stop, Stop::Impossible(_)) || machine.hand_back().is_err() {
                machine.abandon();
            }
        });
        self.machine = None;
        let offset = adopted::peek_offset(self.socket.as_fd()).expect("it is a socket");
        assert_eq!(offset, -1, "who takes the socket back finds it as it was");
    }

    fn receive_past(&mut self, len: usize) {
        if self.incoming.is_past().unwrap_or(false) {
            let _ = self.incoming.receive_past(self.socket.as_fd(), &mut self.buffer[..len]);
        }
    }

    /// Anywhere, but mostly where the words are; anything, but mostly close to what is there, or what another
    /// word says.
    fn vandalize(&self, input: &mut Input<'_>) {
        let place = |choice: u8| match choice {
            0..240 => usize::from(choice / 2) % LINES * LINE_WORDS + usize::from(choice % 2),
            _ => usize::from(choice) * 7,
        };
        let (choice, other) = (input.u8(), input.u8());
        let (here, beside) = (place(choice), place(choice ^ 1));
        match input.u8() % 6 {
            0 => self.vandal.scribble(here, input.u64()),
            1 => self.vandal.scribble(here, input.u8().into()),
            2 => self.vandal.nudge(here, input.u16().into()),
            3 => self.vandal.nudge(here, u64::from(input.u16()).wrapping_neg()),
            4 => self.vandal.scribble(here, self.word(place(other))),
            _ => {
                let word = self.word(place(other)) / 2;
                self.vandal.scribble(here, word);
                self.vandal.scribble(beside, word);
            }
        }
    }

    fn word(&self, place: usize) -> u64 {
        let mut bytes = [0; size_of::<u64>()];
        let offset = (place * bytes.len() % self.memory.bytes()) as u64;
        self.memory.copy_out(offset, &mut bytes).expect("inside of the memory");
        u64::from_ne_bytes(bytes)
    }

    /// The application wants its socket back, if there still is an engine.
    fn end(mut self) {
        if let Some(machine) = &mut self.machine {
            match machine.hand_back() {
                Ok(()) => {
                    let offset = adopted::peek_offset(self.socket.as_fd()).expect("it is a socket");
                    assert_eq!(offset, -1, "a socket that was handed back is as it was");
                    let rest = self.outgoing.unsent().map_or(0, |rest| rest.len());
                    assert!(rest <= PAGE_SIZE, "{rest} bytes of a ring of {PAGE_SIZE}");
                }
                Err(stop) => self.stop(&stop),
            }
        }
        // Resets the connection.
        drop(self.peer);
    }
}

/// No word that an application writes makes a call on its socket fail that does not fail otherwise.
fn judge(stop: &Stop) {
    let is_hostile =
        matches!(stop, Stop::Impossible(_) | Stop::Foul(_) | Stop::Memory(MemoryError::Indices(_)));
    assert!(is_hostile, "{stop}");
}

const STEPS_MAX: usize = 200;
const LINE_WORDS: usize = 16;
/// Lines of words in a stream's block.
const LINES: usize = layout::RX_PAST as usize / (LINE_WORDS * size_of::<u64>()) + 1;
