//! One connection of the mock: bytes in and out of a target queue, and the I/O commands.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use isolane_memory::{Buffer, Payload, Pool};
use isolane_proto::Completion;
use isolane_proto::target::{Connection, ConnectionConfig, DataLocation, Event, Permit, Transfer};
use isolane_wire::io::{DatasetManagementCommand, ReadCommand, WriteCommand, WriteZeroesCommand};
use isolane_wire::opcode::IoOpcode;
use isolane_wire::pdu::{C2hData, CapsuleResp, R2t};
use isolane_wire::{CompletionEntry, Framing, Status, SubmissionEntry};

use super::controller::Controller;
use super::{Fault, Shared};

/// Serves until either side closes.
pub(super) fn serve(stream: TcpStream, shared: &Arc<Shared>) {
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let script = shared.script.lock().clone();
    let limits = ConnectionConfig {
        max_in_capsule_bytes: script.in_capsule_bytes,
        header_digest: script.has_digests,
        data_digest: script.has_digests,
        // Small, so that a write needs several of each.
        max_h2c_data_bytes: 8192,
        max_r2t_bytes: 16_384,
        ..ConnectionConfig::default()
    };
    let generation = shared.generation.load(Ordering::SeqCst);
    let controller = Controller::new(Arc::clone(shared));
    let queue = Connection::new(limits, Instant::now());
    let mut connection = MockConnection {
        stream,
        queue,
        shared,
        generation,
        controller,
        pool: Pool::new(64),
        is_open: true,
        framing: Framing::default(),
    };
    connection.run();
    connection.controller.leave(generation);
}

struct MockConnection<'a> {
    stream: TcpStream,
    queue: Connection,
    shared: &'a Arc<Shared>,
    generation: u64,
    controller: Controller,
    pool: Pool,
    is_open: bool,
    framing: Framing,
}

impl MockConnection<'_> {
    fn run(&mut self) {
        let mut overflow = vec![0; 65_536];
        while self.is_open && !self.is_dropped() {
            self.controller.send_notice(&mut self.queue);
            self.transmit();
            let mut plan = self.queue.receive_plan(&mut overflow);
            let received = self.stream.read_vectored(&mut plan);
            drop(plan);
            match received {
                Ok(0) => break,
                Ok(count) => self.queue.handle_received(count),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => break,
            }
            while let Some(event) = self.queue.poll_event(&overflow, Instant::now()) {
                self.on_event(event);
            }
        }
        self.queue.handle_eof();
    }

    fn is_dropped(&self) -> bool {
        self.shared.generation.load(Ordering::SeqCst) != self.generation
            || self.shared.dropped.lock().contains(&self.controller.cntlid())
    }

    /// Closes all connections, or all connections of this controller.
    fn close_all(&mut self) {
        self.is_open = false;
        if self.shared.script.lock().only_own_controller {
            self.shared.dropped.lock().insert(self.controller.cntlid());
        } else {
            self.shared.generation.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn note_way(&self) {
        self.shared.ways.lock().push((self.controller.cntlid(), self.controller.qid()));
    }

    fn transmit(&mut self) {
        while self.is_open && self.queue.wants_transmit() {
            let sent = self.stream.write_vectored(&self.queue.transmit_plan());
            match sent {
                Ok(count) => self.queue.handle_transmitted(count, &mut self.pool),
                Err(_) => self.is_open = false,
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Connected(request) => {
                let has_digests = self.shared.script.lock().has_digests;
                self.framing.header_digest = request.digests.header() && has_digests;
                self.framing.data_digest = request.digests.data() && has_digests;
            }
            Event::Command { permit, transfer } => {
                let entry = *self.queue.entry(&permit);
                self.on_command(permit, entry, transfer);
            }
            Event::Data { permit, buffer, .. } if self.controller.is_io() => {
                let entry = *self.queue.entry(&permit);
                self.on_write(permit, &entry, &buffer)
            }
            Event::Data { permit, buffer, .. } => {
                let entry = *self.queue.entry(&permit);
                self.controller.on_data(&mut self.queue, permit, &entry, &buffer.to_vec());
            }
            Event::Terminated(_) => {
                self.shared.terminations.fetch_add(1, Ordering::SeqCst);
                self.is_open = false;
            }
            Event::Fatal(_) => self.is_open = false,
        }
    }

    fn on_command(&mut self, permit: Permit, entry: SubmissionEntry, transfer: Transfer) {
        if let Transfer::FromHost { len, place } = transfer {
            let buffer = Buffer::contiguous(len as usize);
            if self.controller.is_io() && self.due() == Some(Fault::R2tBeyond) {
                let r2t = R2t { cccid: entry.cid, ttag: 1, r2to: len - 512, r2tl: 4096 };
                self.send_raw(permit, &r2t.encode(&self.framing), &[]);
            } else if place == DataLocation::InCapsule {
                self.queue.receive_into(permit, buffer);
            } else {
                self.queue.request_data(permit, buffer);
            }
        } else if self.controller.is_io() {
            self.on_io(permit, &entry);
        } else {
            self.controller.on_admin(&mut self.queue, permit, &entry);
        }
    }

    fn on_io(&mut self, permit: Permit, entry: &SubmissionEntry) {
        let blocks =
            if entry.opcode == IoOpcode::Flush.code() { 0 } else { ReadCommand::parse(entry).blocks() };
        self.shared.commands.lock().push((entry.opcode, blocks));
        self.shared.queues.lock().push((self.controller.qid(), entry.opcode));
        self.note_way();

        if self.is_silent(entry) {
            return permit.forfeit();
        }
        if let Some(status) = self.refusal() {
            return self.queue.complete(permit, Completion::failed(status));
        }
        match self.next_fault() {
            Some(fault) => self.misbehave(permit, entry, fault),
            None => self.execute(permit, entry),
        }
    }

    fn execute(&mut self, permit: Permit, entry: &SubmissionEntry) {
        match IoOpcode::decode(entry.opcode) {
            Some(IoOpcode::Read) => {
                let data = self.read(entry);
                self.queue.complete_with_data(permit, Payload::from(data), Completion::success());
            }
            Some(IoOpcode::WriteZeroes) => {
                let command = WriteZeroesCommand::parse(entry);
                self.land(command.slba, &vec![0; command.blocks() as usize * self.block_bytes()]);
                self.queue.complete(permit, Completion::success());
            }
            Some(IoOpcode::Flush) => self.queue.complete(permit, Completion::success()),
            _ => self.queue.complete(permit, Completion::failed(Status::INVALID_OPCODE)),
        }
    }

    fn on_write(&mut self, permit: Permit, entry: &SubmissionEntry, buffer: &Buffer) {
        self.shared.queues.lock().push((self.controller.qid(), entry.opcode));
        self.note_way();
        if entry.opcode == IoOpcode::DatasetManagement.code() {
            let ranges = DatasetManagementCommand::parse(entry).ranges();
            self.shared.commands.lock().push((entry.opcode, ranges as u32));
            return self.queue.complete(permit, Completion::success());
        }
        let command = WriteCommand::parse(entry);
        self.shared.commands.lock().push((entry.opcode, command.blocks()));
        self.shared.forced.lock().extend(command.fua.then_some(command.slba));
        if self.is_silent(entry) {
            return permit.forfeit();
        }
        if let Some(status) = self.refusal() {
            return self.queue.complete(permit, Completion::failed(status));
        }
        match self.next_fault() {
            Some(Fault::ApplyAndClose) => {
                self.land(command.slba, &buffer.to_vec());
                self.misbehave(permit, entry, Fault::Close);
            }
            Some(Fault::LandLate(delay)) => {
                self.land_late(command.slba, buffer.to_vec(), delay);
                self.misbehave(permit, entry, Fault::Close);
            }
            Some(fault) => self.misbehave(permit, entry, fault),
            None => {
                self.land(command.slba, &buffer.to_vec());
                self.queue.complete(permit, Completion::success());
            }
        }
    }

    /// Returns the fault if it is due; it stays due.
    fn due(&self) -> Option<Fault> {
        match self.shared.script.lock().fault {
            Some((0, fault)) => Some(fault),
            _ => None,
        }
    }

    fn is_silent(&self, entry: &SubmissionEntry) -> bool {
        let block = ReadCommand::parse(entry).slba;
        self.shared.script.lock().silent_from.is_some_and(|first| block >= first)
    }

    /// The error that this command is to end with.
    fn refusal(&self) -> Option<Status> {
        self.shared.script.lock().statuses.pop_front().filter(|status| !status.is_success())
    }

    /// Counts a command and returns the fault if it is due.
    fn next_fault(&self) -> Option<Fault> {
        let mut script = self.shared.script.lock();
        match script.fault {
            Some((0, fault)) => {
                script.fault = None;
                Some(fault)
            }
            Some((after, fault)) => {
                script.fault = Some((after - 1, fault));
                None
            }
            None => None,
        }
    }

    fn misbehave(&mut self, permit: Permit, entry: &SubmissionEntry, fault: Fault) {
        let cid = entry.cid;
        let len = entry.sgl.len().unwrap_or(0);
        let data = |cccid, datao, datal| C2hData { cccid, datao, datal, last: true, success: true };
        let response = CapsuleResp { entry: CompletionEntry { cid, ..CompletionEntry::default() } };
        match fault {
            Fault::Close | Fault::ApplyAndClose | Fault::LandLate(_) => {
                permit.forfeit();
                self.close_all();
            }
            Fault::Silence | Fault::R2tBeyond => permit.forfeit(),
            Fault::UnknownCommand => {
                self.send_raw(
                    permit,
                    &data(cid ^ 0x55, 0, len).encode(&self.framing),
                    &vec![0; len as usize],
                );
            }
            Fault::DataBeyond => {
                self.send_raw(permit, &data(cid, 512, len).encode(&self.framing), &vec![0; len as usize]);
            }
            Fault::EarlySuccess => self.send_raw(permit, &response.encode(&self.framing), &[]),
            Fault::DataDigest => {
                let mut bytes = self.read(entry);
                bytes.extend_from_slice(&[1, 2, 3, 4]);
                self.send_raw(permit, &data(cid, 0, len).encode(&self.framing), &bytes);
            }
            Fault::HeaderDigest => {
                let mut header = response.encode(&self.framing).to_vec();
                *header.last_mut().unwrap() ^= 1;
                self.send_raw(permit, &header, &[]);
            }
            Fault::RefuseDigest => {
                self.queue.complete(permit, Completion::failed(Status::TRANSIENT_TRANSPORT_ERROR));
            }
            Fault::Garbage => self.send_raw(permit, &[0xff; 200], &[]),
            Fault::Terminate => {
                // H2CTermReq's mirror image by hand: type 03h, HLEN 24, PLEN 24, FES 02h.
                let mut request = vec![3, 0, 24, 0, 24, 0, 0, 0, 2, 0];
                request.resize(24, 0);
                self.send_raw(permit, &request, &[]);
            }
            Fault::CloseMidway => {
                self.send_raw(permit, &data(cid, 0, len).encode(&self.framing), &vec![9; len as usize / 2]);
                self.close_all();
            }
            Fault::Grow => {
                self.shared.script.lock().blocks *= 2;
                let bytes = self.shared.disk.lock().len();
                self.shared.disk.lock().resize(bytes * 2, 0);
                self.execute(permit, entry);
            }
        }
    }

    fn send_raw(&mut self, permit: Permit, header: &[u8], data: &[u8]) {
        permit.forfeit();
        self.transmit();
        let sent = self.stream.write_all(header).and_then(|()| self.stream.write_all(data));
        self.is_open &= sent.is_ok();
    }

    fn read(&self, entry: &SubmissionEntry) -> Vec<u8> {
        let command = ReadCommand::parse(entry);
        let start = command.slba as usize * self.block_bytes();
        self.shared.disk.lock()[start..start + command.blocks() as usize * self.block_bytes()].to_vec()
    }

    fn land(&self, lba: u64, bytes: &[u8]) {
        land(self.shared, lba, bytes);
    }

    /// Applies the write of the old connection late, when it seems to be gone.
    fn land_late(&self, lba: u64, bytes: Vec<u8>, delay: Duration) {
        let shared = Arc::clone(self.shared);
        let cntlid = self.controller.cntlid();
        shared.script.lock().keeps_controllers = true;
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            land(&shared, lba, &bytes);
            shared.script.lock().keeps_controllers = false;
            shared.controllers.lock().remove(&cntlid);
        });
    }

    fn block_bytes(&self) -> usize {
        self.shared.script.lock().block_bytes as usize
    }
}

fn land(shared: &Shared, lba: u64, bytes: &[u8]) {
    let start = lba as usize * shared.script.lock().block_bytes as usize;
    shared.disk.lock()[start..start + bytes.len()].copy_from_slice(bytes);
    shared.landed.lock().push((lba, bytes[0]));
}
