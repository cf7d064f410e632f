//! Commands of namespaces with a fault that an operator has set.
//!
//! They take the way of commands that wait for orphans, so that a namespace without a fault costs nothing more.

use isolane_observe::stage::Operation;
use isolane_volume::{Request, VolumeError};

use super::Core;
use crate::fault::Fault;
use crate::lane::Lane;
use crate::work::Job;

impl Core {
    /// Returns `true` if a command must be held, or fail.
    pub(super) fn is_faulty(&self, job: &Job) -> bool {
        match self.namespaces.at(job.position).fault {
            None => false,
            Some(Fault::Stall) => true,
            Some(Fault::Fail) => job.operation != Operation::Read,
        }
    }

    /// Returns `true` if a command must fail.
    pub(super) fn fails(&self, job: &Job) -> bool {
        self.namespaces.at(job.position).fault == Some(Fault::Fail) && self.is_faulty(job)
    }

    /// Fails a command before it reaches its volume.
    pub(super) fn fail_on_purpose(&mut self, lane: &mut Lane, job: Job, request: Request) {
        self.fail_unstarted(lane, job, request, VolumeError::SyncFailed { raw_os_error: EIO });
    }

    /// Fails a command that has not reached its volume.
    pub(super) fn fail_unstarted(&mut self, lane: &mut Lane, job: Job, request: Request, error: VolumeError) {
        if let Request::Write { data, .. } = request {
            self.memory.pool.recycle_buffer(data);
        }
        self.finish(lane, job, Err(error));
    }
}

const EIO: i32 = 5;
