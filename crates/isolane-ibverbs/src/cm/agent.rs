//! The agent of the process, for identifiers.

use std::io;
use std::sync::Arc;

use isolane_shm::with_only_faults_unblocked;
use isolane_verbs::connection_manager::{self, Attempt, HandlerRef, Listener};

use super::message::Message;

/// The agent of the process.
pub(super) struct Agent(&'static Arc<connection_manager::Agent>);

/// Returns the agent, whose thread starts with the first call and takes no signals.
pub(super) fn agent() -> io::Result<Agent> {
    with_only_faults_unblocked(connection_manager::agent).map(Agent)
}

impl Agent {
    pub(super) fn number(&self) -> u64 {
        self.0.number()
    }

    pub(super) fn listen(&self, number: u64, listener: Listener) -> io::Result<()> {
        self.0.listen(number, listener)?;
        handed_over();
        Ok(())
    }

    pub(super) fn connect(&self, number: u64, attempt: Attempt) {
        self.0.connect(number, with_timeout_of_test(attempt));
        handed_over();
    }

    pub(super) fn adopt(&self, number: u64, handler: HandlerRef) {
        self.0.adopt(number, handler);
    }

    pub(super) fn send(&self, number: u64, message: &Message) -> io::Result<()> {
        self.0.send(number, message)?;
        handed_over();
        Ok(())
    }

    pub(super) fn close(&self, number: u64) {
        self.0.close(number);
    }
}

/// Follows each step after which the agent can call the handler of a connection. Tests delay the caller here.
fn handed_over() {
    #[cfg(test)]
    super::tests::delay();
}

fn with_timeout_of_test(attempt: Attempt) -> Attempt {
    #[cfg(test)]
    if let Some(timeout) = super::tests::ANSWER_TIMEOUT.get() {
        return attempt.with_answer_timeout(timeout);
    }
    attempt
}
