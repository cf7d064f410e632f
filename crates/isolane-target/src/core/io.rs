//! I/O commands: checks them, provides memory for their data, and turns them into requests of a volume.
//!
//! [`parse_io`] validates a command; [`job`](super::job) runs the request.

use isolane_memory::{Buffer, Payload};
use isolane_observe::stage::{Operation, Stage};
use isolane_proto::subsystem::{IoCommand, parse_io, parse_ranges};
use isolane_proto::target::{Connection, DataLocation, Permit, Transfer};
use isolane_proto::{Completion, Failure};
use isolane_volume::{BlockRange, Request};
use isolane_wire::{Status, SubmissionEntry};

use super::Core;
use super::command::data_len;
use crate::config::MAX_TRANSFER_BYTES;
use crate::lane::{Association, Lane, Stalled};
use crate::timeline::{CommandId, Kind, Mark, Timeline};
use crate::work::{Job, Size, Waiting};

impl Core {
    /// Handles an I/O command before its data has arrived.
    pub(super) fn on_io_command(&mut self, lane: &mut Lane, permit: Permit, transfer: Transfer) {
        let entry = lane.conn.entry(&permit);
        let checked = self.find(lane.association.as_ref(), entry).and_then(|position| {
            let command = self.check(entry, position, data_len(transfer))?;
            Ok((position, command))
        });
        let (position, command) = match checked {
            Ok(checked) => checked,
            Err(status) => return self.refuse_io(lane, permit, status),
        };
        if let IoCommand::Read { lba, blocks, fua } = command {
            return self.read(lane, permit, position, (lba, u64::from(blocks), fua));
        }
        if let Transfer::FromHost { len, place } = transfer
            && let IoCommand::Write { .. } | IoCommand::Deallocate { .. } = command
        {
            return self.take_data(lane, permit, position, command, len as usize, place);
        }
        let request = match command {
            IoCommand::Flush => Request::Flush,
            IoCommand::WriteZeroes { lba, blocks, fua, deallocate } => {
                let (blocks, fua) = (u64::from(blocks), fua || must_be_durable(lane));
                Request::WriteZeroes { lba, blocks, fua, deallocate }
            }
            IoCommand::NoOp => return self.complete(lane, permit, Completion::success()),
            IoCommand::Read { .. } | IoCommand::Write { .. } | IoCommand::Deallocate { .. } => {
                return self.fail(lane, permit, Failure::SglLength);
            }
        };
        self.begin(lane, permit, position, request, None);
    }

    /// Handles the complete data of an I/O command, which keeps the namespace that it started with.
    pub(super) fn on_io_data(
        &mut self,
        lane: &mut Lane,
        permit: Permit,
        position: usize,
        buffer: Buffer,
        timeline: Timeline,
    ) {
        let entry = lane.conn.entry(&permit);
        let ready = self.check_ready(lane.association.as_ref());
        let command = match ready.and_then(|_| self.check(entry, position, buffer.len() as u32)) {
            Ok(command) => command,
            Err(status) => return self.refuse_data(lane, permit, buffer, status),
        };
        self.run_with_data(lane, permit, position, command, buffer, Some(timeline));
    }

    /// Handles the data of a command that another process has received, and whose namespace had no volume when this one
    /// continued the connection.
    #[cold]
    pub(super) fn on_resumed_data(&mut self, lane: &mut Lane, permit: Permit, buffer: Buffer) {
        match self.find(lane.association.as_ref(), lane.conn.entry(&permit)) {
            Ok(position) => {
                let timeline = Timeline::new(lane.received_at);
                self.on_io_data(lane, permit, position, buffer, timeline);
            }
            Err(status) => self.refuse_data(lane, permit, buffer, status),
        }
    }

    fn run_with_data(
        &mut self,
        lane: &mut Lane,
        permit: Permit,
        position: usize,
        command: IoCommand,
        buffer: Buffer,
        timeline: Option<Timeline>,
    ) {
        let is_durable = must_be_durable(lane);
        let request = match command {
            IoCommand::Write { lba, blocks, fua } => {
                return self.write(
                    lane,
                    permit,
                    position,
                    buffer,
                    (lba, u64::from(blocks), fua || is_durable),
                    timeline,
                );
            }
            IoCommand::Deallocate { ranges } => {
                match self.deallocate_request(position, buffer, ranges, is_durable) {
                    Ok(request) => request,
                    Err(status) => return self.fail(lane, permit, status),
                }
            }
            _ => return self.refuse_data(lane, permit, buffer, Failure::Internal.status()),
        };
        self.begin(lane, permit, position, request, timeline);
    }

    /// Starts a request at its volume. `timeline` is that of a command whose data came after it.
    fn begin(
        &mut self,
        lane: &mut Lane,
        permit: Permit,
        position: usize,
        request: Request,
        timeline: Option<Timeline>,
    ) {
        let timeline = timeline.unwrap_or_else(|| Timeline::new(lane.received_at));
        let start = (self.now, command_id(lane, &permit), timeline);
        let mut job = Job::new(permit, position, self.namespaces.at(position), &request, start);
        if job.operation == Operation::Flush {
            job.flush_number = lane.changes().map_or(0, |changes| changes.start_flush(position));
        }
        self.start(lane, job, request);
    }

    /// Completes a read immediately if its volume can, except for long reads, which others can pass. A read
    /// with FUA returns only durable data: the cache is flushed first.
    fn read(
        &mut self,
        lane: &mut Lane,
        permit: Permit,
        position: usize,
        (lba, blocks, fua): (u64, u64, bool),
    ) {
        let namespace = self.namespaces.at(position);
        let len = (blocks as usize) << namespace.geometry.block_shift;
        if !fua
            && !self.is_fenced(lane, position)
            && namespace.limiter.is_none()
            && lane.memory.is_none()
            && Size::of(len) == Size::Small
            && let Some(payload) = namespace.volume.try_read(lba, blocks, &mut self.memory.pool)
        {
            self.count_inline(lane, &permit, Kind::new(namespace.number, Operation::Read, len));
            return self.complete_io(lane, permit, Operation::Read, len, payload);
        }
        let read = Request::Read { lba, blocks };
        let start = (self.now, command_id(lane, &permit), Timeline::new(lane.received_at));
        let mut job = Job::new(permit, position, namespace, &read, start);
        if fua && namespace.volume.info().volatile_cache {
            job.then = Some(read);
            return self.start(lane, job, Request::Flush);
        }
        self.start(lane, job, read);
    }

    /// Completes a write immediately if its volume can.
    fn write(
        &mut self,
        lane: &mut Lane,
        permit: Permit,
        position: usize,
        data: Buffer,
        (lba, blocks, fua): (u64, u64, bool),
        mut timeline: Option<Timeline>,
    ) {
        if self.is_fenced(lane, position) || self.namespaces.at(position).limiter.is_some() {
            return self.begin(lane, permit, position, Request::Write { lba, blocks, data, fua }, timeline);
        }
        let (namespace, len) = (self.namespaces.at(position), data.len());
        if let Some(timeline) = &mut timeline {
            timeline.enter(Stage::Device, self.observer.now());
        }
        match namespace.volume.try_write(lba, blocks, data, &mut self.memory.pool) {
            Ok(()) => {
                if namespace.has_cache && !fua {
                    lane.changes().into_iter().for_each(|changes| changes.record_change(position));
                }
                let kind = Kind::new(namespace.number, Operation::Write, len);
                match timeline {
                    Some(timeline) => {
                        let mark = Mark::new(kind, command_id(lane, &permit), timeline);
                        self.add_mark(lane, mark);
                    }
                    None => self.count_inline(lane, &permit, kind),
                }
                self.complete_io(lane, permit, Operation::Write, len, Payload::default());
            }
            Err(data) => {
                self.begin(lane, permit, position, Request::Write { lba, blocks, data, fua }, timeline);
            }
        }
    }

    /// Returns `true` if a command may have to wait for commands of older associations, or for orphans.
    #[inline]
    fn is_fenced(&self, lane: &Lane, position: usize) -> bool {
        lane.association.as_ref().is_some_and(|association| association.fence.is_some())
            || self.has_orphans
                && (self.volumes[position].fence.is_some() || self.namespaces.at(position).fault.is_some())
    }

    /// Counts a command that completes in the receive that delivered it.
    #[inline(always)]
    fn count_inline(&self, lane: &mut Lane, permit: &Permit, kind: Kind) {
        if self.observer.is_on() {
            let Lane { conn, marks, received_at, unseen, .. } = lane;
            marks.add_inline(kind, *received_at, || id_of(conn, permit, *unseen));
        }
    }

    /// Checks that the controller accepts I/O.
    #[inline]
    fn check_ready<'a>(&self, association: Option<&'a Association>) -> Result<&'a Association, Status> {
        let Some(association) = association else {
            return Err(Failure::Sequence.status());
        };
        let status = &association.status;
        status.record_traffic();
        if status.is_ready() { Ok(association) } else { Err(Failure::NotReady.status()) }
    }

    /// Finds the namespace of a new command.
    #[inline]
    fn find(&self, association: Option<&Association>, entry: &SubmissionEntry) -> Result<usize, Status> {
        let association = self.check_ready(association)?;
        let found = self.namespaces.find_for(association.id.subsystem, entry.nsid, association.mask_host);
        found.ok_or_else(|| self.missing(association, entry.nsid).status())
    }

    /// Returns the failure of a command to a namespace without a volume, or one that the host does not see.
    #[cold]
    pub(super) fn missing(&self, association: &Association, nsid: u32) -> Failure {
        let (subsystem, host) = (association.id.subsystem, &association.host);
        let is_offline = self.namespaces.is_offline_for(subsystem, nsid, host);
        if is_offline { Failure::Offline } else { Failure::Namespace }
    }

    /// Decodes a command.
    #[inline]
    fn check(&self, entry: &SubmissionEntry, position: usize, len: u32) -> Result<IoCommand, Status> {
        parse_io(entry, &self.namespaces.at(position).geometry, len, MAX_TRANSFER_BYTES)
    }

    /// Receives the data of a command, or queues the command until memory is available.
    fn take_data(
        &mut self,
        lane: &mut Lane,
        permit: Permit,
        position: usize,
        command: IoCommand,
        len: usize,
        place: DataLocation,
    ) {
        match place {
            DataLocation::InCapsule => match self.in_capsule_buffer(lane, &permit, position, len) {
                Some(mut buffer) => {
                    if lane.conn.take_landed(&permit, &mut buffer) {
                        return self.run_with_data(lane, permit, position, command, buffer, None);
                    }
                    self.expect_data(lane, position, len);
                    self.begin_transfer(lane, &permit, position, Timeline::new(lane.received_at));
                    lane.conn.receive_into(permit, buffer);
                }
                // It would hold the commands of other namespaces on its lane.
                None if self.volumes[position].slow.is_stalled => self.answer(lane, position, permit),
                None => {
                    self.counters.deferred_commands.add(1);
                    log::trace!("{}: not read until memory is available", lane.peer());
                    self.counters.memory_waits.add(1);
                    let mut timeline = Timeline::new(lane.received_at);
                    timeline.enter(Stage::Memory, self.observer.now());
                    lane.stalled = Some(Stalled { permit, position, len, since: self.now, timeline });
                }
            },
            DataLocation::Transport => {
                let (since, timeline) = (self.now, Timeline::new(lane.received_at));
                let waiting = Waiting::Data { lane: lane.key, permit, position, len, since, timeline };
                if self.namespaces.at(position).limiter.is_some() {
                    return self.request_within_limits(lane, waiting, len);
                }
                self.enter(lane, waiting)
            }
        }
    }

    /// The command waits for its data from now on.
    pub(super) fn begin_transfer(
        &self,
        lane: &mut Lane,
        permit: &Permit,
        position: usize,
        mut timeline: Timeline,
    ) {
        timeline.enter(Stage::Transfer, self.observer.now());
        lane.marks.begin_transfer(permit.slot(), position, timeline);
    }

    fn refuse_data(&mut self, lane: &mut Lane, permit: Permit, buffer: Buffer, status: Status) {
        self.memory.pool.recycle_buffer(buffer);
        self.refuse_io(lane, permit, status);
    }

    /// Completes with an error; if the association has ended, the lane closes without a response.
    fn refuse_io(&mut self, lane: &mut Lane, permit: Permit, status: Status) {
        if lane.association.as_ref().is_some_and(|association| association.status.has_ended()) {
            self.close_gracefully(lane, "its association has ended");
        }
        if status == Failure::Offline.status() && !has_retry_delays(lane) {
            return self.hold_offline(lane, permit);
        }
        self.fail(lane, permit, status);
    }

    fn deallocate_request(
        &mut self,
        position: usize,
        buffer: Buffer,
        count: u16,
        fua: bool,
    ) -> Result<Request, Status> {
        let ranges = parse_ranges(&buffer.to_vec(), count, &self.namespaces.at(position).geometry);
        self.memory.pool.recycle_buffer(buffer);
        let ranges = ranges?.into_iter();
        let ranges = ranges.map(|range| BlockRange { lba: range.slba, blocks: u64::from(range.blocks) });
        Ok(Request::Deallocate { ranges: ranges.filter(|range| range.blocks > 0).collect(), fua })
    }
}

fn command_id(lane: &Lane, permit: &Permit) -> CommandId {
    id_of(&lane.conn, permit, lane.unseen)
}

fn id_of(conn: &Connection, permit: &Permit, unseen: u64) -> CommandId {
    CommandId {
        lba: conn.entry(permit).cdw10_11(),
        cid: permit.cid(),
        depth: conn.in_flight() as u16,
        unseen,
        last_member: None,
    }
}

/// Returns `true` if the host has disabled the volatile cache.
fn must_be_durable(lane: &Lane) -> bool {
    lane.association.as_ref().is_some_and(|association| !association.status.is_write_cache_enabled())
}

/// Returns `true` if the host waits before a retry as a status tells it.
pub(super) fn has_retry_delays(lane: &Lane) -> bool {
    lane.association.as_ref().is_some_and(|association| association.status.has_retry_delays())
}
