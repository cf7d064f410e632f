//! I/O commands: checked, given memory for their data, turned into requests to a volume.
//!
//! What a command may do is decided by [`parse_io`]; what becomes of the request, by [`job`](super::job).

use std::time::Duration;

use isolane_memory::{Buffer, Payload, Pool};
use isolane_proto::Completion;
use isolane_proto::subsystem::{IoCommand, parse_io, parse_ranges};
use isolane_proto::target::{Permit, Place, Transfer};
use isolane_volume::{BlockRange, Request};
use isolane_wire::opcode::IoOpcode;
use isolane_wire::{Status, SubmissionEntry};

use super::Core;
use super::command::data_len;
use super::job::Job;
use super::lane::{Association, Lane, Stalled};
use super::memory::Size;
use super::waiting::Waiting;
use crate::config::TRANSFER_BYTES_MAX;
use crate::counters::Operation;
use crate::namespace::Namespace;

impl Core {
    /// An I/O command arrived, its data not yet.
    pub(super) fn on_io_command(
        &mut self,
        lane: &mut Lane,
        permit: Permit,
        entry: &SubmissionEntry,
        transfer: Transfer,
    ) {
        let (position, command) = match self.check(lane.association.as_ref(), entry, data_len(transfer)) {
            Ok(checked) => checked,
            Err(status) => return self.refuse_io(lane, permit, status),
        };
        if let Transfer::FromHost { len, place } = transfer
            && let IoCommand::Write { .. } | IoCommand::Deallocate { .. } = command
        {
            let landed = self.take_data(lane, permit, position, len as usize, place);
            return match (landed, command) {
                (Some((permit, data)), IoCommand::Write { lba, blocks, fua }) => {
                    let fua = fua || must_be_durable(lane);
                    self.write(lane, permit, position, data, (lba, u64::from(blocks), fua));
                }
                (Some((permit, data)), _) => self.on_io_data(lane, permit, entry, data),
                (None, _) => {}
            };
        }
        let request = match command {
            IoCommand::Read { lba, blocks, fua } => {
                return self.read(lane, permit, position, lba, u64::from(blocks), fua);
            }
            IoCommand::Flush => Request::Flush,
            IoCommand::WriteZeroes { lba, blocks, fua, deallocate } => {
                let (blocks, fua) = (u64::from(blocks), fua || must_be_durable(lane));
                Request::WriteZeroes { lba, blocks, fua, deallocate }
            }
            IoCommand::Hint => return self.complete(lane, permit, Completion::success()),
            IoCommand::Write { .. } | IoCommand::Deallocate { .. } => {
                return self.fail(lane, permit, Status::DATA_SGL_LENGTH_INVALID);
            }
        };
        self.begin(lane, permit, position, request);
    }

    /// All data of an I/O command has arrived.
    pub(super) fn on_io_data(
        &mut self,
        lane: &mut Lane,
        permit: Permit,
        entry: &SubmissionEntry,
        buffer: Buffer,
    ) {
        let (position, command) = match self.check(lane.association.as_ref(), entry, buffer.len() as u32) {
            Ok(checked) => checked,
            Err(status) => return self.refuse_data(lane, permit, buffer, status),
        };
        let is_durable = must_be_durable(lane);
        let request = match command {
            IoCommand::Write { lba, blocks, fua } => {
                return self.write(
                    lane,
                    permit,
                    position,
                    buffer,
                    (lba, u64::from(blocks), fua || is_durable),
                );
            }
            IoCommand::Deallocate { ranges } => {
                match self.deallocate_request(position, buffer, ranges, is_durable) {
                    Ok(request) => request,
                    Err(status) => return self.fail(lane, permit, status),
                }
            }
            _ => return self.refuse_data(lane, permit, buffer, Status::INTERNAL_ERROR),
        };
        self.begin(lane, permit, position, request);
    }

    /// Gives a request to its volume.
    fn begin(&mut self, lane: &mut Lane, permit: Permit, position: usize, request: Request) {
        let job = Job::new(permit, position, self.shared.namespaces.at(position), &request, self.now);
        self.start(lane, job, request);
    }

    /// A read that its volume can answer at once is answered without ado, unless others may pass it. One with
    /// FUA returns nothing that a power cut could still take back: the cache is flushed before it.
    fn read(&mut self, lane: &mut Lane, permit: Permit, position: usize, lba: u64, blocks: u64, fua: bool) {
        let namespace = self.shared.namespaces.at(position);
        let len = (blocks as usize) << namespace.geometry.block_shift;
        if !fua
            && !is_fenced(lane)
            && let Some(payload) = read_now(namespace, lba, blocks, &mut self.memory.pool)
        {
            return self.answer_at_once(lane, permit, position, Operation::Read, len, payload);
        }
        let read = Request::Read { lba, blocks };
        let mut job = Job::new(permit, position, namespace, &read, self.now);
        if fua && namespace.volume.geometry().volatile_cache {
            job.then = Some(read);
            return self.start(lane, job, Request::Flush);
        }
        self.start(lane, job, read);
    }

    /// What a read of `len` bytes returns, if it can be answered at once, which it then is. The usual case
    /// with less ado.
    #[inline]
    pub(super) fn read_at_once(
        &mut self,
        association: Option<&Association>,
        entry: &SubmissionEntry,
        len: u32,
    ) -> Option<Payload> {
        let association =
            association.filter(|association| association.qid != 0 && association.fence.is_none())?;
        if entry.opcode != IoOpcode::Read.code() || !self.shared.namespaces.have_answers(entry.nsid) {
            return None;
        }
        let (position, command) = self.check(Some(association), entry, len).ok()?;
        let IoCommand::Read { lba, blocks, fua: false } = command else { return None };
        let payload =
            read_now(self.shared.namespaces.at(position), lba, u64::from(blocks), &mut self.memory.pool)?;
        self.counters.record(position, Operation::Read, Ok(u64::from(len)), Duration::ZERO);
        association.counters.record_read(u64::from(len));
        Some(payload)
    }

    /// A write that its volume can do at once is done without ado.
    fn write(
        &mut self,
        lane: &mut Lane,
        permit: Permit,
        position: usize,
        data: Buffer,
        (lba, blocks, fua): (u64, u64, bool),
    ) {
        if is_fenced(lane) {
            return self.begin(lane, permit, position, Request::Write { lba, blocks, data, fua });
        }
        let (volume, len) = (&self.shared.namespaces.at(position).volume, data.len());
        match volume.write_now(lba, blocks, data, &mut self.memory.pool) {
            Ok(()) => {
                self.answer_at_once(lane, permit, position, Operation::Write, len, Payload::default());
            }
            Err(data) => self.begin(lane, permit, position, Request::Write { lba, blocks, data, fua }),
        }
    }

    /// Namespace and meaning of a command, if it may be done now.
    #[inline]
    fn check(
        &self,
        association: Option<&Association>,
        entry: &SubmissionEntry,
        len: u32,
    ) -> Result<(usize, IoCommand), Status> {
        let Some(Association { status, .. }) = association else {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        };
        status.record_traffic();
        if !status.is_ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        let namespaces = &self.shared.namespaces;
        let position = namespaces.find(entry.nsid).ok_or(Status::INVALID_NAMESPACE.with_dnr(true))?;
        let command = parse_io(entry, &namespaces.at(position).geometry, len, TRANSFER_BYTES_MAX)?;
        Ok((position, command))
    }

    /// Finds memory for a command's data and takes it, or lets the command wait. Gives it back if all of it
    /// is there already.
    fn take_data(
        &mut self,
        lane: &mut Lane,
        permit: Permit,
        position: usize,
        len: usize,
        place: Place,
    ) -> Option<(Permit, Buffer)> {
        match place {
            Place::InCapsule => match self.in_capsule_buffer(lane, &permit, position, len) {
                Some(buffer) => match lane.queue.receive_landed(permit, buffer) {
                    Ok(landed) => return Some(landed),
                    Err((permit, buffer)) => {
                        self.expect_data(lane, position, len);
                        lane.queue.receive_into(permit, buffer);
                    }
                },
                None => {
                    self.counters.deferred_commands.add(1);
                    log::trace!("{}: not read from until there is memory", lane.peer());
                    lane.stalled = Some(Stalled { permit, position, len, since: self.now });
                }
            },
            Place::Transport => self.enter(lane, Waiting::Data { lane: lane.key, permit, position, len }),
        }
        None
    }

    fn refuse_data(&mut self, lane: &mut Lane, permit: Permit, buffer: Buffer, status: Status) {
        self.memory.pool.recycle_buffer(buffer);
        self.refuse_io(lane, permit, status);
    }

    /// Answers with an error; but if the association has ended meanwhile, the lane ends without an answer.
    fn refuse_io(&mut self, lane: &mut Lane, permit: Permit, status: Status) {
        if lane.association.as_ref().is_some_and(|association| association.status.has_ended()) {
            self.leave(lane, "its association has ended");
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
        let geometry = &self.shared.namespaces.at(position).geometry;
        let ranges = parse_ranges(&buffer.to_vec(), count, geometry);
        self.memory.pool.recycle_buffer(buffer);
        let ranges = ranges?.into_iter();
        let ranges = ranges.map(|range| BlockRange { lba: range.lba, blocks: u64::from(range.blocks) });
        Ok(Request::Deallocate { ranges: ranges.filter(|range| range.blocks > 0).collect(), fua })
    }
}

/// What small reads return at once, if the volume can.
#[inline]
fn read_now(namespace: &Namespace, lba: u64, blocks: u64, pool: &mut Pool) -> Option<Payload> {
    let len = (blocks as usize) << namespace.geometry.block_shift;
    if Size::of(len) != Size::Small {
        return None;
    }
    namespace.volume.read_now(lba, blocks, pool)
}

/// Whether its commands may have to wait for those of older associations.
fn is_fenced(lane: &Lane) -> bool {
    lane.association.as_ref().is_some_and(|association| association.fence.is_some())
}

/// Whether nothing may be left in a volatile cache: the host has disabled it.
fn must_be_durable(lane: &Lane) -> bool {
    lane.association.as_ref().is_some_and(|association| !association.status.is_write_cache_enabled())
}
