//! A host's and a target's connection joined by two byte streams in memory, with fake time.
//!
//! Bytes move in segments of any size. The target's side provides memory for every write.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use isolane_memory::{Buffer, Payload, Pool};
use isolane_wire::digest::crc32c;
use isolane_wire::{CompletionEntry, SubmissionEntry};

use crate::target::{DataLocation, Permit, Transfer};
use crate::{Completion, host, target};

/// The two ends and the streams between them.
pub(crate) struct Pair {
    pub(crate) host: host::Connection,
    pub(crate) target: target::Connection,
    pub(crate) now: Instant,
    pub(crate) pool: Pool,
    pub(crate) to_target: VecDeque<u8>,
    pub(crate) to_host: VecDeque<u8>,
    /// Length of the next segment.
    cut: Box<dyn FnMut() -> usize>,
    overflow: Vec<u8>,
    /// Commands that the test must complete, and writes whose data has arrived.
    pub(crate) commands: VecDeque<(Permit, SubmissionEntry, Transfer)>,
    pub(crate) writes: VecDeque<(Permit, SubmissionEntry, Buffer, bool)>,
    pub(crate) target_ends: Vec<target::Event>,
    pub(crate) completions: VecDeque<(u64, CompletionEntry, Option<Buffer>, bool)>,
    pub(crate) host_ends: Vec<host::Event>,
    /// Events of the target, in short.
    pub(crate) transcript: Vec<String>,
}

impl Pair {
    /// Both ends with the default configuration, connected without flow control.
    pub(crate) fn connected() -> Pair {
        let mut pair = Pair::new(host::ConnectionConfig::default(), target::ConnectionConfig::default());
        pair.connect(128, true);
        pair
    }

    /// Two ends that have sent nothing.
    pub(crate) fn new(options: host::ConnectionConfig, limits: target::ConnectionConfig) -> Pair {
        let now = Instant::now();
        Pair {
            host: host::Connection::new(options, now),
            target: target::Connection::new(limits, now),
            now,
            pool: Pool::new(4096),
            to_target: VecDeque::new(),
            to_host: VecDeque::new(),
            cut: Box::new(|| usize::MAX),
            overflow: vec![0; 64 * 1024],
            commands: VecDeque::new(),
            writes: VecDeque::new(),
            target_ends: Vec::new(),
            completions: VecDeque::new(),
            host_ends: Vec::new(),
            transcript: Vec::new(),
        }
    }

    /// Uses segments and overflows of random size from now on.
    pub(crate) fn cut_randomly(&mut self, seed: u64, max_segment: usize, overflow_len: usize) {
        let mut random = fastrand::Rng::with_seed(seed);
        self.cut = Box::new(move || random.usize(1..=max_segment));
        self.overflow = vec![0; overflow_len];
    }

    /// Initializes the connection with a queue of `entries` entries, as Connect does.
    pub(crate) fn connect(&mut self, entries: u16, flow_control_disabled: bool) {
        self.drive();
        self.target.set_connected(1, entries - 1, flow_control_disabled);
        self.host.set_connected(u32::from(entries), flow_control_disabled);
        self.host.set_max_in_capsule(16 * 1024);
        // The response to Connect, which is the first.
        self.submit(SubmissionEntry::new(0x7f, 0), host::Data::None, u64::MAX);
        self.drive();
        let (permit, _, _) = self.command();
        self.target.complete(permit, Completion::success());
        self.drive();
        let (_, entry, _, _) = self.completed();
        assert_eq!(entry.sqhd, if flow_control_disabled { 0xffff } else { 1 });
        self.host_ends.clear();
        self.target_ends.clear();
        self.transcript.clear();
    }

    pub(crate) fn submit(&mut self, entry: SubmissionEntry, data: host::Data, tag: u64) {
        self.host.submit(entry, data, tag).expect("capacity");
    }

    /// The next command that the target received.
    pub(crate) fn command(&mut self) -> (Permit, SubmissionEntry, Transfer) {
        self.commands.pop_front().expect("a command arrived")
    }

    /// The next write whose data arrived.
    pub(crate) fn write(&mut self) -> (Permit, SubmissionEntry, Buffer, bool) {
        self.writes.pop_front().expect("a write arrived")
    }

    /// The next command that completed at the host.
    pub(crate) fn completed(&mut self) -> (u64, CompletionEntry, Option<Buffer>, bool) {
        self.completions.pop_front().expect("a command was completed")
    }

    /// Moves bytes until all have arrived.
    pub(crate) fn drive(&mut self) {
        while self.turn() {}
    }

    /// Moves one segment in each direction. Returns `false` if nothing moved.
    pub(crate) fn turn(&mut self) -> bool {
        let sent = self.transmit_host() + self.transmit_target();
        let received = self.receive_target() + self.receive_host();
        sent + received > 0
    }

    pub(crate) fn transmit_host(&mut self) -> usize {
        let n = take(&self.host.transmit_plan(), (self.cut)(), &mut self.to_target);
        self.host.handle_transmitted(n);
        n
    }

    pub(crate) fn transmit_target(&mut self) -> usize {
        let n = take(&self.target.transmit_plan(), (self.cut)(), &mut self.to_host);
        self.target.handle_transmitted(n, &mut self.pool);
        n
    }

    pub(crate) fn receive_target(&mut self) -> usize {
        let mut overflow = std::mem::take(&mut self.overflow);
        let n = fill(&mut self.target.receive_plan(&mut overflow), (self.cut)(), &mut self.to_target);
        if n > 0 {
            self.target.handle_received(n);
        }
        while let Some(event) = self.target.poll_event(&overflow, self.now) {
            self.on_target_event(event);
        }
        self.overflow = overflow;
        n
    }

    pub(crate) fn receive_host(&mut self) -> usize {
        let mut overflow = std::mem::take(&mut self.overflow);
        let n = fill(&mut self.host.receive_plan(&mut overflow), (self.cut)(), &mut self.to_host);
        if n > 0 {
            self.host.handle_received(n);
        }
        while let Some(event) = self.host.poll_event(&overflow, self.now) {
            self.on_host_event(event);
        }
        self.overflow = overflow;
        n
    }

    /// Advances the time.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.host.handle_timeout(self.now);
        self.target.handle_timeout(self.now);
        self.receive_target();
        self.receive_host();
    }

    /// Completes all commands like a memory volume; dword 10 is the offset.
    pub(crate) fn serve(&mut self, store: &mut [u8]) {
        while let Some((permit, entry, buffer, digest_ok)) = self.writes.pop_front() {
            assert!(digest_ok, "no digest was wrong");
            buffer.copy_to(0, &mut store[entry.cdw10 as usize..][..buffer.len()]);
            self.pool.recycle_buffer(buffer);
            self.target.complete(permit, Completion::success());
        }
        while let Some((permit, entry, transfer)) = self.commands.pop_front() {
            match transfer {
                Transfer::ToHost { len } => {
                    let bytes = store[entry.cdw10 as usize..][..len as usize].to_vec();
                    self.target.complete_with_data(permit, Payload::from(bytes), Completion::success());
                }
                _ => self.target.complete(permit, Completion::success()),
            }
        }
    }

    fn on_target_event(&mut self, event: target::Event) {
        self.transcript.push(describe(&self.target, &event));
        match event {
            target::Event::Command { permit, transfer: Transfer::FromHost { len, place }, .. } => {
                let buffer = self.pool.buffer(len as usize).expect("the pool is large enough");
                match place {
                    DataLocation::InCapsule => self.target.receive_into(permit, buffer),
                    DataLocation::Transport => self.target.request_data(permit, buffer),
                }
            }
            target::Event::Command { permit, transfer } => {
                let entry = *self.target.entry(&permit);
                self.commands.push_back((permit, entry, transfer));
            }
            target::Event::Data { permit, buffer, digest_ok } => {
                let entry = *self.target.entry(&permit);
                self.writes.push_back((permit, entry, buffer, digest_ok));
            }
            end => self.target_ends.push(end),
        }
    }

    fn on_host_event(&mut self, event: host::Event) {
        match event {
            host::Event::Completed(host::Completed { tag, entry, buffer, digest_ok }) => {
                self.completions.push_back((tag, entry, buffer, digest_ok));
            }
            end => self.host_ends.push(end),
        }
    }
}

/// Describes an event, without the slot, which depends on the timing of other commands.
fn describe(target: &target::Connection, event: &target::Event) -> String {
    match event {
        target::Event::Command { permit, transfer } => {
            format!("{:x?} {transfer:?}", target.entry(permit).encode())
        }
        target::Event::Data { permit, buffer, digest_ok } => {
            let entry = target.entry(permit);
            format!("{:x} {} {digest_ok}", entry.cid, crc32c(&buffer.to_vec()))
        }
        other => format!("{other:?}"),
    }
}

/// Forfeits the permits of commands that the test did not complete.
impl Drop for Pair {
    fn drop(&mut self) {
        self.commands.drain(..).for_each(|(permit, ..)| permit.forfeit());
        self.writes.drain(..).for_each(|(permit, ..)| permit.forfeit());
    }
}

/// Sends up to `max` bytes of a transmit plan, like a kernel.
pub(crate) fn take(plan: &[IoSlice<'_>], max: usize, stream: &mut VecDeque<u8>) -> usize {
    let before = stream.len();
    let mut left = max;
    for slice in plan {
        let n = slice.len().min(left);
        stream.extend(&slice[..n]);
        left -= n;
    }
    stream.len() - before
}

/// Fills up to `max` bytes of a receive plan, like a kernel.
pub(crate) fn fill(plan: &mut [IoSliceMut<'_>], max: usize, stream: &mut VecDeque<u8>) -> usize {
    let mut n = 0;
    for slice in plan {
        let len = slice.len().min(max - n).min(stream.len());
        for (byte, value) in slice[..len].iter_mut().zip(stream.drain(..len)) {
            *byte = value;
        }
        n += len;
    }
    n
}

/// A pattern in which bytes depend on their position.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8) ^ ((at >> 8) as u8).wrapping_mul(31) ^ seed).collect()
}

/// A caller's buffer with these bytes.
pub(crate) fn buffer_of(bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::contiguous(bytes.len());
    buffer.copy_in(0, bytes);
    buffer
}
