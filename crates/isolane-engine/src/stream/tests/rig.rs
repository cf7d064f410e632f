//! A stream with both of its ends in one process: an application, its peer, an engine that can be killed, and
//! what a supervisor keeps. Each byte says where in its direction it belongs.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use isolane_attach::control::StreamPlace;
use isolane_attach::stream::{Incoming, Moved, Origin, Outgoing, ends};
use isolane_ring::{Memory, PAGE_SIZE, adopted};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::net::sockopt;

use super::super::fuse::Fuse;
use super::super::{Kept, Machine, Progress, Stop};
use crate::service::Ready;

pub struct Rig {
    pub memory: Memory,
    place: StreamPlace,
    pub socket: TcpStream,
    pub peer: TcpStream,
    pub app: Option<(Incoming, Outgoing)>,
    pub engine: Option<Engine>,
    pub kept: Kept,
    /// The supervisor's duplicate.
    stored: Option<OwnedFd>,
    pub up: Direction,
    pub down: Direction,
    /// What each new engine lives for.
    pub lives: Option<u32>,
    pub kills: u32,
    /// Reads past the ring.
    pub native_reads: u32,
    rung: bool,
    buffer: Vec<u8>,
}

/// All that a poller may say.
pub const ALL: Ready = Ready { readable: true, urgent: true, writable: true, finished: true, hung_up: true };

pub struct Engine {
    pub machine: Machine,
    poller: OwnedFd,
    is_cold: bool,
}

/// Bytes of one direction.
#[derive(Default)]
pub struct Direction {
    pub written: u64,
    pub read: u64,
}

/// The byte at a position.
fn byte(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl Direction {
    fn next(&self, len: usize) -> Vec<u8> {
        (self.written..self.written + len as u64).map(byte).collect()
    }

    fn check(&mut self, bytes: &[u8]) {
        for (index, seen) in bytes.iter().enumerate() {
            assert!(self.read < self.written, "a byte that was never written");
            assert_eq!(*seen, byte(self.read), "byte {} of {}, {index} of a read", self.read, self.written);
            self.read += 1;
        }
    }
}

impl Rig {
    /// `buffers`: what the kernel's are limited to on both sides.
    pub fn new(capacity: u64, buffers: Option<usize>) -> Rig {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        if let Some(bytes) = buffers {
            sockopt::set_socket_recv_buffer_size(&listener, bytes).unwrap();
        }
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = listener.accept().unwrap().0;
        for end in [&peer, &socket] {
            end.set_nodelay(true).unwrap();
            end.set_nonblocking(true).unwrap();
            if let Some(bytes) = buffers {
                sockopt::set_socket_send_buffer_size(end, bytes).unwrap();
                sockopt::set_socket_recv_buffer_size(end, bytes).unwrap();
            }
        }
        let page = PAGE_SIZE as u64;
        let memory = Memory::create("rig", PAGE_SIZE + 2 * capacity as usize).unwrap();
        let place = StreamPlace {
            block: 0,
            rx: page,
            rx_capacity: capacity,
            tx: page + capacity,
            tx_capacity: capacity,
        };
        let kept = Kept::of(socket.as_fd(), place).unwrap();
        let mut rig = Rig {
            memory,
            place,
            socket,
            peer,
            app: None,
            engine: None,
            kept,
            stored: None,
            up: Direction::default(),
            down: Direction::default(),
            lives: None,
            kills: 0,
            native_reads: 0,
            rung: false,
            buffer: vec![0; 1 << 17],
        };
        rig.adopt();
        rig
    }

    /// The supervisor has what is kept; engines may die from here on.
    pub fn adopt(&mut self) {
        self.memory.copy_in(0, &[0; PAGE_SIZE]).unwrap();
        self.kept = Kept::of(self.socket.as_fd(), self.place).unwrap();
        self.stored = Some(self.socket.as_fd().try_clone_to_owned().unwrap());
        let (incoming, outgoing, _) = ends(&self.memory, &self.place).unwrap();
        self.app = Some((incoming, outgoing));
        self.take_up();
    }

    /// The next engine, or the one after that, if it dies at once.
    pub fn take_up(&mut self) {
        while self.engine.is_none() {
            let fuse = Fuse::of(self.lives.take());
            let socket = self.stored.as_ref().expect("adopted").try_clone().unwrap();
            let kept = Kept::decode(&self.kept.encode());
            let machine = match Machine::take_up_with(socket, &self.memory, kept, fuse) {
                Ok(machine) => machine,
                Err(Stop::Killed) => {
                    self.kills += 1;
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let poller = epoll::create(CreateFlags::CLOEXEC).unwrap();
            let flags = EventFlags::IN | EventFlags::PRI | EventFlags::OUT;
            let flags = flags | EventFlags::RDHUP | EventFlags::ET;
            epoll::add(&poller, machine.socket(), EventData::new_u64(0), flags).unwrap();
            self.engine = Some(Engine { machine, poller, is_cold: false });
        }
    }

    pub fn kill(&mut self) {
        self.kills += 1;
        self.engine = None;
        self.take_up();
    }

    /// Engine and supervisor end with the sockets that they have.
    pub fn drop_engine(&mut self) {
        (self.engine, self.stored) = (None, None);
    }

    /// What becomes of something that the engine has tried; after its death, the next has taken up.
    pub fn survive<T>(&mut self, outcome: Result<T, Stop>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(Stop::Killed) => {
                self.kill();
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A turn of the engine's loop. It looks only at what is hot, or what somebody has told it of.
    pub fn look(&mut self) -> Progress {
        let mut events = Vec::with_capacity(4);
        let engine = self.engine.as_mut().expect("an engine");
        let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&engine.poller, rustix::buffer::spare_capacity(&mut events), Some(&none)).unwrap();
        for event in &events {
            let flags = event.flags;
            engine.machine.on_ready(Ready {
                readable: flags.contains(EventFlags::IN),
                urgent: flags.contains(EventFlags::PRI),
                writable: flags.contains(EventFlags::OUT),
                finished: flags.contains(EventFlags::RDHUP),
                hung_up: flags.intersects(EventFlags::HUP | EventFlags::ERR),
            });
        }
        if std::mem::take(&mut self.rung) || !events.is_empty() {
            engine.machine.wake();
            engine.is_cold = false;
        }
        if engine.is_cold {
            return Progress::default();
        }
        let outcome = engine.machine.look();
        self.survive(outcome).unwrap_or_default()
    }

    pub fn rest(&mut self) {
        let engine = self.engine.as_mut().expect("an engine");
        if !engine.is_cold {
            let outcome = engine.machine.rest();
            if let Some(rests) = self.survive(outcome)
                && let Some(engine) = &mut self.engine
            {
                engine.is_cold = rests;
            }
        }
    }

    fn note(&mut self, moved: io::Result<Moved>) -> io::Result<usize> {
        let moved = moved?;
        self.rung |= moved.rings;
        Ok(moved.bytes)
    }

    pub fn app_write(&mut self, len: usize, past: bool) -> io::Result<usize> {
        let bytes = self.up.next(len);
        let outgoing = &mut self.app.as_mut().expect("adopted").1;
        // As a long write: only past a ring that is empty.
        let count = match past {
            true if outgoing.is_idle()? => outgoing.send_past(self.socket.as_fd(), &bytes)?,
            true => return Err(io::ErrorKind::WouldBlock.into()),
            false => {
                let moved = outgoing.try_write(&bytes);
                self.note(moved)?
            }
        };
        self.up.written += count as u64;
        Ok(count)
    }

    /// From the ring, or past it where the engine has yielded.
    pub fn app_read(&mut self, len: usize) -> io::Result<usize> {
        let mut bytes = vec![0; len];
        let incoming = &mut self.app.as_mut().expect("adopted").0;
        let count = if incoming.is_past().unwrap() && len > 0 {
            let count = incoming.receive_past(self.socket.as_fd(), &mut bytes)?;
            self.native_reads += 1;
            if count == 0 {
                self.app_want_past(false);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            count
        } else {
            let moved = incoming.try_read(&mut bytes);
            self.note(moved)?
        };
        self.down.check(&bytes[..count]);
        Ok(count)
    }

    pub fn app_want_past(&mut self, wants: bool) {
        let rings = self.app.as_mut().expect("adopted").0.want_past(wants);
        self.rung |= rings;
    }

    /// Until the engine has yielded, which it must without any byte.
    pub fn app_go_past(&mut self) {
        self.app_want_past(true);
        self.until("the socket", |rig| rig.app.as_mut().expect("adopted").0.is_past().unwrap());
    }

    pub fn app_shut(&mut self) {
        let rings = self.app.as_mut().expect("adopted").1.shut();
        self.rung |= rings;
    }

    pub fn peer_write(&mut self, len: usize) -> io::Result<usize> {
        let count = self.peer.write(&self.down.next(len))?;
        self.down.written += count as u64;
        Ok(count)
    }

    /// The last of them is urgent.
    pub fn peer_write_urgent(&mut self, len: usize) {
        let bytes = self.down.next(len);
        let flags = rustix::net::SendFlags::OOB;
        self.down.written += rustix::net::send(&self.peer, &bytes, flags).unwrap_or(0) as u64;
    }

    pub fn peer_read(&mut self, len: usize) -> io::Result<usize> {
        let len = len.min(self.buffer.len());
        let count = self.peer.read(&mut self.buffer[..len])?;
        self.up.check(&self.buffer[..count]);
        Ok(count)
    }

    /// The application takes its socket back, and sends what was left in the ring.
    pub fn hand_back(&mut self) {
        loop {
            let outcome = self.engine.as_mut().expect("an engine").machine.hand_back();
            if self.survive(outcome).is_some() {
                break;
            }
        }
        self.drop_engine();
        self.rung = false;
        let rest = self.app.take().expect("adopted").1.unsent().unwrap();
        self.send_rest(&rest);
    }

    /// The engine dies after so many things, and with it the supervisor: the application takes its socket back by
    /// itself, and sends what was left in the ring.
    pub fn take_back(&mut self, things: u32) {
        let machine = &mut self.engine.as_mut().expect("an engine").machine;
        machine.fuse.set(Some(things));
        machine.on_ready(ALL);
        machine.wake();
        let lives = machine.look().is_ok() && machine.rest().is_ok();
        // As an engine that ends in order.
        let _ = lives && machine.hand_back().is_ok();
        self.drop_engine();
        self.rung = false;
        let origin = Origin { written: self.kept.written, is_inline: self.kept.is_inline };
        let (mut incoming, mut outgoing) = self.app.take().expect("adopted");
        incoming.take_back(self.socket.as_fd(), &origin).unwrap();
        let rest = outgoing.take_back(self.socket.as_fd(), &origin).unwrap();
        assert_eq!(adopted::peek_offset(self.socket.as_fd()).unwrap(), -1);
        self.send_rest(&rest);
    }

    fn send_rest(&mut self, rest: &[u8]) {
        let mut sent = 0;
        while sent < rest.len() {
            match self.socket.write(&rest[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => drop(self.peer_read(1 << 16)),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// A hostile application writes a word of the block.
    pub fn scribble(&mut self, word: u64, value: u64) {
        self.memory.copy_in(self.place.block + word, &value.to_ne_bytes()).unwrap();
    }

    /// As an application without an engine.
    pub fn native_write(&mut self, len: usize) {
        self.up.written += self.socket.write(&self.up.next(len)).unwrap_or(0) as u64;
    }

    pub fn native_read(&mut self, len: usize) {
        let count = self.socket.read(&mut self.buffer[..len]).unwrap_or(0);
        self.down.check(&self.buffer[..count]);
    }

    /// Everybody goes on until `has_come`. The engine rests as often as it may.
    pub fn until(&mut self, what: &str, mut has_come: impl FnMut(&mut Rig) -> bool) {
        let start = Instant::now();
        while !has_come(self) {
            assert!(start.elapsed() < Duration::from_secs(30), "{what} does not come: {}", self.state());
            if !self.look().is_busy {
                self.rest();
            }
        }
    }

    /// The application closes its socket, or dies: the engine, and each one after it, is told to close. Returns
    /// once all is done.
    pub fn close(&mut self, mut meanwhile: impl FnMut(&mut Rig)) {
        self.socket = TcpStream::from(gone());
        let start = Instant::now();
        // As its core does when an end is asked for.
        self.engine.as_mut().expect("an engine").is_cold = false;
        loop {
            assert!(start.elapsed() < Duration::from_secs(30), "it does not close: {}", self.state());
            let engine = self.engine.as_mut().expect("an engine");
            engine.machine.close(start);
            if self.look().is_over {
                let finished = self.engine.as_mut().expect("an engine").machine.hand_back();
                if self.survive(finished).is_some() {
                    self.drop_engine();
                    return;
                }
            }
            self.rest();
            meanwhile(self);
        }
    }

    fn state(&self) -> String {
        let (up, down) = (&self.up, &self.down);
        format!(
            "up {} of {}, down {} of {}, {} killed, engine {:?}",
            up.read,
            up.written,
            down.read,
            down.written,
            self.kills,
            self.engine.as_ref().map(|engine| (&engine.machine, engine.is_cold))
        )
    }

    /// All that was written arrives, in both directions, and both ends in order.
    pub fn settle(&mut self) {
        self.until("what was written", |rig| {
            let _ = (rig.app_read(3000), rig.peer_read(3000));
            rig.up.read == rig.up.written && rig.down.read == rig.down.written
        });
        let _ = self.peer.shutdown(Shutdown::Write);
        self.until("the peer's end", |rig| matches!(rig.app_read(1), Ok(0)));
        self.app_shut();
        self.until("the application's end", |rig| matches!(rig.peer_read(1), Ok(0)));
    }
}

/// In place of a socket that was closed.
pub fn gone() -> OwnedFd {
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.into()
}
