//! A stream whose application writes anything into the shared memory at any time.
//!
//! Invariant: the engine does not panic or block; no written value makes a call on the socket fail; and the
//! engine leaves the socket as it was. The application's ends do not panic on any value that the engine wrote.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use isolane_attach::stream::{RxRing, TxRing, open_rings};
use isolane_engine::object::Ready;
use isolane_engine::stream::{StreamError, StreamMachine, StreamRecord};
use isolane_engine_api::layout::stream as layout;
use isolane_engine_api::stream::StreamLayout;
use isolane_engine_api::{decode, encode};
use isolane_shm::testing::{self, Corruptor};
use isolane_shm::{MemoryError, PAGE_SIZE, SharedMemory};
use rustix::net::sockopt;

use crate::input::Input;

/// Decisions of an application, its peer, an engine that is killed, and a corruptor.
pub(crate) fn engine_stream(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut harness = Harness::new();
    for _ in 0..MAX_STEPS {
        if input.is_empty() || harness.machine.is_none() {
            break;
        }
        harness.step(&mut input);
    }
    harness.end();
}

struct Harness {
    memory: SharedMemory,
    corruptor: Corruptor,
    socket: TcpStream,
    peer: TcpStream,
    incoming: RxRing,
    outgoing: TxRing,
    record: StreamRecord,
    machine: Option<StreamMachine>,
    buffer: Vec<u8>,
}

impl Harness {
    fn new() -> Harness {
        let (socket, peer) = testing::connection().expect("there are sockets");
        socket.set_nonblocking(true).expect("it is a socket");
        peer.set_nonblocking(true).expect("it is a socket");
        // Else each would keep a port for a minute.
        sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).expect("it is a socket");
        let page = PAGE_SIZE as u64;
        let memory = SharedMemory::create("isolane-fuzz", 3 * PAGE_SIZE).expect("there is memory");
        let place = StreamLayout { block: 0, rx: page, rx_capacity: page, tx: 2 * page, tx_capacity: page };
        let (incoming, outgoing, _) = open_rings(&memory, &place).expect("the offsets are valid");
        let record = StreamRecord::capture(socket.as_fd(), place).expect("it can be adopted");
        let mut harness = Harness {
            corruptor: Corruptor::new(&memory),
            memory,
            socket,
            peer,
            incoming,
            outgoing,
            record,
            machine: None,
            buffer: vec![0; 3 * PAGE_SIZE],
        };
        harness.take_up();
        harness
    }

    /// Starts the next engine from the supervisor's record.
    fn take_up(&mut self) {
        drop(self.machine.take());
        let socket = self.socket.as_fd().try_clone_to_owned().expect("there are descriptors");
        let record = decode(&encode(&self.record)).expect("encoded just now");
        self.machine =
            StreamMachine::resume(socket, &self.memory, record).map_err(|stop| assert_allowed(&stop)).ok();
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.u8() % 24;
        let len = usize::from(input.u16()) % self.buffer.len();
        match choice {
            0..=5 => self.corrupt(input),
            6..=9 => self.poll(),
            10 | 11 => self.prepare_idle(),
            12 => self.take_up(),
            13 => drop(self.peer.write(&self.buffer[..len])),
            14 => drop(self.peer.read(&mut self.buffer[..len])),
            15 => drop(self.outgoing.try_write(&self.buffer[..len])),
            16 => drop(self.incoming.try_read(&mut self.buffer[..len])),
            17 => drop(self.incoming.set_bypass(len.is_multiple_of(2))),
            18 => drop(self.outgoing.shut()),
            19 => drop(self.outgoing.is_ready().and(self.incoming.is_ready())),
            20 => self.receive_direct(len),
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

    fn with(&mut self, act: impl FnMut(&mut StreamMachine)) {
        self.machine.as_mut().into_iter().for_each(act);
    }

    /// Polls it as a core does.
    fn poll(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        match machine.poll() {
            Ok(looked) if looked.closed => self.machine = None,
            Ok(_) => {}
            Err(stop) => self.stop(&stop),
        }
    }

    fn prepare_idle(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        if let Err(stop) = machine.prepare_idle() {
            self.stop(&stop);
        }
    }

    fn stop(&mut self, stop: &StreamError) {
        assert_allowed(stop);
        self.with(|machine| {
            // The application can have the socket back unless it wrote an invalid index.
            machine.fail();
            if matches!(stop, StreamError::InvalidIndex(_)) || machine.release().is_err() {
                machine.abandon();
            }
        });
        self.machine = None;
        let offset = isolane_tcp::peek_offset(self.socket.as_fd()).expect("it is a socket");
        assert_eq!(offset, -1, "the released socket is as before");
    }

    fn receive_direct(&mut self, len: usize) {
        if self.incoming.is_bypassing().unwrap_or(false) {
            let _ = self.incoming.receive_direct(self.socket.as_fd(), &mut self.buffer[..len]);
        }
    }

    /// Writes anywhere, mostly to indices; any value, mostly one close to the present one or to another
    /// index.
    fn corrupt(&self, input: &mut Input<'_>) {
        let place = |choice: u8| match choice {
            0..240 => usize::from(choice / 2) % LINES * LINE_WORDS + usize::from(choice % 2),
            _ => usize::from(choice) * 7,
        };
        let (choice, other) = (input.u8(), input.u8());
        let (here, next) = (place(choice), place(choice ^ 1));
        match input.u8() % 6 {
            0 => self.corruptor.scribble(here, input.u64()),
            1 => self.corruptor.scribble(here, input.u8().into()),
            2 => self.corruptor.nudge(here, input.u16().into()),
            3 => self.corruptor.nudge(here, u64::from(input.u16()).wrapping_neg()),
            4 => self.corruptor.scribble(here, self.word(place(other))),
            _ => {
                let word = self.word(place(other)) / 2;
                self.corruptor.scribble(here, word);
                self.corruptor.scribble(next, word);
            }
        }
    }

    fn word(&self, place: usize) -> u64 {
        let mut bytes = [0; size_of::<u64>()];
        let offset = (place * bytes.len() % self.memory.bytes()) as u64;
        self.memory.copy_out(offset, &mut bytes).expect("inside of the memory");
        u64::from_ne_bytes(bytes)
    }

    /// Returns the socket to the application if the engine still runs.
    fn end(mut self) {
        if let Some(machine) = &mut self.machine {
            match machine.release() {
                Ok(()) => {
                    let offset = isolane_tcp::peek_offset(self.socket.as_fd()).expect("it is a socket");
                    assert_eq!(offset, -1, "the returned socket is as before");
                    let unsent = self.outgoing.unsent().map_or(0, |bytes| bytes.len());
                    assert!(unsent <= PAGE_SIZE, "{unsent} bytes of a ring of {PAGE_SIZE}");
                }
                Err(stop) => self.stop(&stop),
            }
        }
        // Resets the connection.
        drop(self.peer);
    }
}

/// No value that an application writes makes a call on its socket fail.
fn assert_allowed(stop: &StreamError) {
    let is_hostile = matches!(
        stop,
        StreamError::InvalidIndex(_)
            | StreamError::Violation(_)
            | StreamError::Memory(MemoryError::Indices(_))
    );
    assert!(is_hostile, "{stop}");
}

const MAX_STEPS: usize = 200;
const LINE_WORDS: usize = 16;
/// Cache lines in a stream's control block.
const LINES: usize = layout::RX_BYPASS as usize / (LINE_WORDS * size_of::<u64>()) + 1;
