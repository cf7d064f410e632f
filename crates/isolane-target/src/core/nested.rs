//! Nested volumes: runs requests to their members on the core that received the command.
//!
//! Invariant: every operation of the executor is resumed once; see
//! [`Executor`](isolane_volume::nested::Executor).

use isolane_reactor::file::FileCompletion;
use isolane_volume::Pending;
use isolane_volume::nested::{Member, MemberEnd};
use slotmap::{Key, KeyData};

use super::Core;
use crate::work::FileWork;

impl Core {
    /// Registers a pending request, and starts the nested request that completes it, if any.
    pub(super) fn register(&mut self, mut pending: Pending, work: FileWork) {
        let nested = pending.take_nested();
        let token = self.files.insert(work);
        pending.register(self.reactor.register_external(token.data().as_ffi()));
        if let Some(nested) = nested {
            self.nested.start_tagged(nested, Some(token.data().as_ffi()));
            self.run_nested();
        }
    }

    /// Submits the operations of nested requests.
    pub(super) fn run_nested(&mut self) {
        while let Some(operation) = self.nested.poll(self.now, &mut self.memory.pool) {
            self.files.insert_with_key(|token| {
                FileWork::Member(operation.submit(token.data().as_ffi(), &mut self.reactor))
            });
        }
        while let Some(end) = self.nested.poll_ended() {
            self.record_member(end);
        }
    }

    fn record_member(&mut self, end: MemberEnd) {
        let Some(id) = self.namespaces.member(end.member()) else { return };
        if let MemberEnd::Last { tag: Some(tag), .. } = end
            && let Some(FileWork::Command { job, .. }) = self.files.get_mut(KeyData::from_ffi(tag).into())
        {
            job.id.last_member = Some(id);
        }
        self.observer.record_member(id, end);
    }

    /// Continues a member after its operation.
    pub(super) fn resume_member(&mut self, member: Member, finished: FileCompletion) {
        let FileCompletion { result, operation, .. } = finished;
        self.nested.resume(member, result, operation, self.now, &mut self.memory.pool);
        self.run_nested();
    }
}
