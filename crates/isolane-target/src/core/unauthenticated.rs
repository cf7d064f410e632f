//! Connected queues whose host has not authenticated: their number is bounded, also while they close.
//!
//! Invariant: a queue of a host that must authenticate is in the budget until its host has done so, or its socket is closed.

use super::Core;
use super::accept::reset;
use crate::lane::Lane;
use crate::shared::Message;

impl Core {
    /// Counts a queue that connects, which may displace one of another address. Returns `false` if there are too many.
    pub(super) fn enter_unauthenticated(&mut self, lane: &mut Lane) -> bool {
        let Some((arrival, displaced)) = self.shared.unauthenticated.try_enter(lane.peer().ip(), lane.id)
        else {
            return false;
        };
        lane.unauthenticated = Some(arrival);
        if let Some(lane) = displaced {
            self.shared.post(lane.core, Message::Displace { lane });
        }
        true
    }

    /// Ends the count of a queue whose host has authenticated, or which has ended.
    pub(super) fn leave_unauthenticated(&mut self, lane: &mut Lane) {
        if let Some(arrival) = lane.unauthenticated.take() {
            self.shared.unauthenticated.remove(lane.peer().ip(), arrival);
        }
    }

    /// Closes a queue that a queue of another address has displaced.
    #[cold]
    pub(super) fn displace_unauthenticated(&mut self, lane: &mut Lane) {
        // One that closes was refused before.
        if lane.is_open() {
            self.refuse_host(lane, TOO_MANY_UNAUTHENTICATED);
        }
        if let Some(socket) = lane.token.and_then(|token| self.reactor.socket(token)) {
            reset(&socket);
        }
        self.close(lane, "another connection displaced it before its host authenticated");
    }
}

/// Reason for a refusal.
pub(super) const TOO_MANY_UNAUTHENTICATED: &str =
    "too many connections of its address have not authenticated";
