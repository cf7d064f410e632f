//! Messages from other cores. A message for a lane that has ended is dropped.

use isolane_proto::subsystem::ListenerId;

use super::Driver;
use super::flush::AfterFlush;
use crate::lane::Lane;
use crate::shared::Message;
use crate::slab::LaneId;

impl Driver {
    /// Reads a bounded number of messages.
    pub(super) fn read_mailbox(&mut self) {
        for _ in 0..MESSAGES_PER_TURN {
            match self.mailbox.poll() {
                Some(message) => self.handle_message(message),
                None => return,
            }
        }
        self.core.reactor.waker().wake();
    }

    pub(super) fn handle_message(&mut self, message: Message) {
        match message {
            Message::Adopt { socket, peer, listener } => self.adopt(socket, peer, listener),
            Message::Accepted { socket, peer } => self.place(ListenerId::NONE, socket, peer),
            Message::Close { lane, reason } => self.with_lane(lane, |core, lane| core.close(lane, reason)),
            Message::Retire { lane, reason } => self.retire(lane, reason),
            Message::Listen(listener) => self.listen(*listener),
            Message::CloseListener { id, closed } => {
                self.close_listener(id);
                drop(closed);
            }
            Message::CopyListeners { addresses, copies } => {
                // The caller may have given up.
                let _ = copies.send(self.copy_listeners(&addresses));
            }
            Message::AsyncEvents { lane } => {
                self.with_lane(lane, |core, lane| core.complete_async_events(lane))
            }
            Message::HostPage { lane, page } => {
                self.with_lane(lane, |core, lane| core.on_host_page(lane, &page));
            }
            Message::Computed { lane, computed } => {
                self.with_lane(lane, |core, lane| core.on_computed(lane, computed));
            }
            Message::Displace { lane } => self.displace(lane),
            Message::Checkpoint(checkpoint) => drop(checkpoint),
            Message::Shutdown { id, in_flight, changes } => {
                self.core.plan_flush(id.subsystem, in_flight, changes, AfterFlush::ReportShutdown(id));
            }
            Message::DrainHost { subsystem, host, fence, reply_to } => {
                self.begin_host_drain((subsystem, *host), fence, reply_to);
            }
            Message::HostDrained { lane } => self.with_lane(lane, |core, lane| core.on_host_drained(lane)),
            Message::RetryConnect { lane } => self.with_lane(lane, |core, lane| core.try_connect(lane)),
            Message::LoadReport { core, load } => self.record_load(core, load),
            Message::Migrate { lane, to } => self.request_migration(lane, to),
            Message::MigratePeer { peer, to } => self.request_peer_migration(peer, to),
            Message::MigrateIn(migrating) => self.migrate_in(migrating),
            Message::Namespaces { table, seen } => {
                self.take_namespaces(table);
                drop(seen);
            }
            Message::Fence { position, fence, _checkpoint } => self.core.set_fence(position, fence),
            Message::RetryBehind => self.core.waiting.retry_behind(),
            Message::Release(release) => {
                self.core.releasing.push(release);
                self.release_unused();
            }
            Message::MemoryLimits(limits) => self.set_memory_limits(limits),
            Message::Describe(sender) => self.describe_lanes(&sender),
            Message::Freeze { patience, still } => self.begin_freeze(patience, still),
            Message::TakeState(sender) => self.send_state(&sender),
            Message::Thaw => self.thaw(),
            Message::Leave(sender) => self.leave(&sender),
            Message::Resume(lane) => self.resume_lane(*lane),
            Message::Stop { deadline } => self.begin_shutdown(deadline),
        }
    }

    fn with_lane(&mut self, id: LaneId, f: impl FnOnce(&mut super::Core, &mut Lane)) {
        if let Some(lane) = self.key_of(id).and_then(|key| self.lanes.get_mut(key)) {
            f(&mut self.core, lane);
        }
    }
}

const MESSAGES_PER_TURN: usize = 256;
