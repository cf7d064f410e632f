//! Test fixture with both ends of a stream: an application, its peer, an engine that can be killed, and the
//! record of a supervisor. The value of each byte depends on its position.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use isolane_attach::stream::{RxRing, Transferred, TxRing, open_rings};
use isolane_engine_api::stream::{Origin, StreamLayout};
use isolane_engine_api::{decode, encode};
use isolane_shm::{PAGE_SIZE, SharedMemory};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::net::sockopt;

use super::super::failpoint::Failpoint;
use super::super::{Progress, StreamError, StreamMachine, StreamRecord};
use crate::object::Ready;

pub struct Rig {
    pub memory: SharedMemory,
    place: StreamLayout,
    pub socket: TcpStream,
    pub peer: TcpStream,
    pub app: Option<(RxRing, TxRing)>,
    pub engine: Option<Engine>,
    pub record: StreamRecord,
    /// The supervisor's duplicate.
    stored: Option<OwnedFd>,
    pub up: Direction,
    pub down: Direction,
    /// Failpoint countdown of the next engine.
    pub failpoint_after: Option<u32>,
    pub kills: u32,
    /// Reads that bypassed the ring.
    pub direct_reads: u32,
    rung: bool,
    buffer: Vec<u8>,
}

/// All events.
pub const ALL: Ready = Ready { readable: true, urgent: true, writable: true, finished: true, hung_up: true };

pub struct Engine {
    pub machine: StreamMachine,
    poller: OwnedFd,
    idle: bool,
}

/// Byte counts of one direction.
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
    /// `buffers`: size of the kernel's buffers on both sides.
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
        let memory = SharedMemory::create("rig", PAGE_SIZE + 2 * capacity as usize).unwrap();
        let place = StreamLayout {
            block: 0,
            rx: page,
            rx_capacity: capacity,
            tx: page + capacity,
            tx_capacity: capacity,
        };
        let record = StreamRecord::capture(socket.as_fd(), place).unwrap();
        let mut rig = Rig {
            memory,
            place,
            socket,
            peer,
            app: None,
            engine: None,
            record,
            stored: None,
            up: Direction::default(),
            down: Direction::default(),
            failpoint_after: None,
            kills: 0,
            direct_reads: 0,
            rung: false,
            buffer: vec![0; 1 << 17],
        };
        rig.adopt();
        rig
    }

    /// Adopts the socket. Engines may die from here on.
    pub fn adopt(&mut self) {
        self.memory.copy_in(0, &[0; PAGE_SIZE]).unwrap();
        self.record = StreamRecord::capture(self.socket.as_fd(), self.place).unwrap();
        self.stored = Some(self.socket.as_fd().try_clone_to_owned().unwrap());
        let (incoming, outgoing, _) = open_rings(&self.memory, &self.place).unwrap();
        self.app = Some((incoming, outgoing));
        self.resume();
    }

    /// Starts the next engine, and another one if that dies immediately.
    pub fn resume(&mut self) {
        while self.engine.is_none() {
            let failpoint = Failpoint::new(self.failpoint_after.take());
            let socket = self.stored.as_ref().expect("adopted").try_clone().unwrap();
            let record = decode(&encode(&self.record)).unwrap();
            let machine = match StreamMachine::resume_with(socket, &self.memory, record, failpoint) {
                Ok(machine) => machine,
                Err(StreamError::Failpoint) => {
                    self.kills += 1;
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let poller = epoll::create(CreateFlags::CLOEXEC).unwrap();
            let flags = EventFlags::IN | EventFlags::PRI | EventFlags::OUT;
            let flags = flags | EventFlags::RDHUP | EventFlags::ET;
            epoll::add(&poller, machine.socket(), EventData::new_u64(0), flags).unwrap();
            self.engine = Some(Engine { machine, poller, idle: false });
        }
    }

    pub fn kill(&mut self) {
        self.kills += 1;
        self.engine = None;
        self.resume();
    }

    /// Drops the sockets of engine and supervisor.
    pub fn drop_engine(&mut self) {
        (self.engine, self.stored) = (None, None);
    }

    /// Returns the value of an engine's action, or starts the next engine if it died.
    pub fn survive<T>(&mut self, outcome: Result<T, StreamError>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(StreamError::Failpoint) => {
                self.kill();
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs a turn of the engine's loop, which polls only an active stream.
    pub fn poll(&mut self) -> Progress {
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
            engine.machine.need_wakeup().disarm();
            engine.idle = false;
        }
        if engine.idle {
            return Progress::default();
        }
        let outcome = engine.machine.poll();
        self.survive(outcome).unwrap_or_default()
    }

    pub fn prepare_idle(&mut self) {
        let engine = self.engine.as_mut().expect("an engine");
        if !engine.idle {
            let outcome = engine.machine.prepare_idle();
            if let Some(rests) = self.survive(outcome)
                && let Some(engine) = &mut self.engine
            {
                engine.idle = rests;
            }
        }
    }

    fn note(&mut self, moved: io::Result<Transferred>) -> io::Result<usize> {
        let moved = moved?;
        self.rung |= moved.ring_doorbell;
        Ok(moved.bytes)
    }

    pub fn app_write(&mut self, len: usize, past: bool) -> io::Result<usize> {
        let bytes = self.up.next(len);
        let outgoing = &mut self.app.as_mut().expect("adopted").1;
        // As a long write: bypasses only an empty ring.
        let count = match past {
            true if outgoing.is_idle()? => outgoing.send_direct(self.socket.as_fd(), &bytes)?,
            true => return Err(io::ErrorKind::WouldBlock.into()),
            false => {
                let moved = outgoing.try_write(&bytes);
                self.note(moved)?
            }
        };
        self.up.written += count as u64;
        Ok(count)
    }

    /// Reads from the ring, or directly once the engine has acknowledged the bypass.
    pub fn app_read(&mut self, len: usize) -> io::Result<usize> {
        let mut bytes = vec![0; len];
        let incoming = &mut self.app.as_mut().expect("adopted").0;
        let count = if incoming.is_bypassing().unwrap() && len > 0 {
            let count = incoming.receive_direct(self.socket.as_fd(), &mut bytes)?;
            self.direct_reads += 1;
            if count == 0 {
                self.app_set_bypass(false);
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

    pub fn app_set_bypass(&mut self, wants: bool) {
        let rings = self.app.as_mut().expect("adopted").0.set_bypass(wants);
        self.rung |= rings;
    }

    /// Starts the bypass, and waits until the engine acknowledges it, without data.
    pub fn app_start_bypass(&mut self) {
        self.app_set_bypass(true);
        self.until("the socket", |rig| rig.app.as_mut().expect("adopted").0.is_bypassing().unwrap());
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

    /// Releases the socket; the application sends the remaining data of the ring.
    pub fn release(&mut self) {
        loop {
            let outcome = self.engine.as_mut().expect("an engine").machine.release();
            if self.survive(outcome).is_some() {
                break;
            }
        }
        self.drop_engine();
        self.rung = false;
        let unsent = self.app.take().expect("adopted").1.unsent().unwrap();
        self.send_unsent(&unsent);
    }

    /// Kills engine and supervisor after `actions`; the application recovers its socket, and sends the remaining data
    /// of the ring.
    pub fn recover(&mut self, actions: u32) {
        let machine = &mut self.engine.as_mut().expect("an engine").machine;
        machine.common.failpoint.set(Some(actions));
        machine.on_ready(ALL);
        machine.need_wakeup().disarm();
        let failpoint_after = machine.poll().is_ok() && machine.prepare_idle().is_ok();
        // As in a clean shutdown.
        let _ = failpoint_after && machine.release().is_ok();
        self.drop_engine();
        self.rung = false;
        let origin = Origin { written: self.record.written, oob_inline: self.record.oob_inline };
        let (mut incoming, mut outgoing) = self.app.take().expect("adopted");
        incoming.reclaim(self.socket.as_fd(), &origin).unwrap();
        let unsent = outgoing.reclaim(self.socket.as_fd(), &origin).unwrap();
        assert_eq!(isolane_tcp::peek_offset(self.socket.as_fd()).unwrap(), -1);
        self.send_unsent(&unsent);
    }

    fn send_unsent(&mut self, unsent: &[u8]) {
        let mut sent = 0;
        while sent < unsent.len() {
            match self.socket.write(&unsent[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => drop(self.peer_read(1 << 16)),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Writes a word of the control block, as a hostile application.
    pub fn scribble(&mut self, word: u64, value: u64) {
        self.memory.copy_in(self.place.block + word, &value.to_ne_bytes()).unwrap();
    }

    /// Writes to the socket, as an application without an engine.
    pub fn native_write(&mut self, len: usize) {
        self.up.written += self.socket.write(&self.up.next(len)).unwrap_or(0) as u64;
    }

    pub fn native_read(&mut self, len: usize) {
        let count = self.socket.read(&mut self.buffer[..len]).unwrap_or(0);
        self.down.check(&self.buffer[..count]);
    }

    /// Runs the engine until `is_done`; it becomes idle as often as possible.
    pub fn until(&mut self, what: &str, mut is_done: impl FnMut(&mut Rig) -> bool) {
        let start = Instant::now();
        while !is_done(self) {
            assert!(start.elapsed() < Duration::from_secs(30), "timeout: {what}: {}", self.state());
            if !self.poll().busy {
                self.prepare_idle();
            }
        }
    }

    /// Closes the application's socket and the stream. Returns once the close is complete.
    pub fn close(&mut self, mut step: impl FnMut(&mut Rig)) {
        self.socket = TcpStream::from(gone());
        let start = Instant::now();
        // As a core does for a close.
        self.engine.as_mut().expect("an engine").idle = false;
        loop {
            assert!(start.elapsed() < Duration::from_secs(30), "it does not close: {}", self.state());
            let engine = self.engine.as_mut().expect("an engine");
            engine.machine.close(start);
            if self.poll().closed {
                let finished = self.engine.as_mut().expect("an engine").machine.release();
                if self.survive(finished).is_some() {
                    self.drop_engine();
                    return;
                }
            }
            self.prepare_idle();
            step(self);
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
            self.engine.as_ref().map(|engine| (&engine.machine, engine.idle))
        )
    }

    /// Checks that all data arrives in both directions, with clean ends.
    pub fn finish(&mut self) {
        self.until("all data", |rig| {
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
