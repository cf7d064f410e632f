//! Admin queue in use: Keep Alive and asynchronous events.
//!
//! The target holds one Asynchronous Event Request. Each event is read with Get Log Page, so that the next
//! one can follow (Base 1.4 §5.2). A changed namespace is identified again, with its descriptor list.
//!
//! Invariant: while keep alive is on, a command is sent at least twice per timeout, and a command without a
//! completion within the timeout means that the association is lost.

use std::time::{Duration, Instant};

use isolane_memory::Buffer;
use isolane_proto::host::{Completed, Data};
use isolane_wire::SubmissionEntry;
use isolane_wire::admin::{
    AsyncEvent, Cns, GetLogPageCommand, IdentifyCommand, LogPage, Notice, async_event_request, keep_alive,
};

use super::lane::{DisconnectReason, Lane};
use crate::connect;
use crate::info::NamespaceInfo;

/// Admin queue of an association in use.
pub(crate) struct AdminQueue {
    pub lane: Lane,
    nsid: u32,
    keep_alive: Duration,
    next: Instant,
    /// When the Keep Alive in flight was sent.
    sent: Option<Instant>,
    /// Identify Namespace data of a changed namespace, until its descriptor list arrives.
    identified: Option<Buffer>,
}

impl AdminQueue {
    /// Sends an event request if the target accepts any.
    pub(crate) fn new(
        lane: Lane,
        nsid: u32,
        keep_alive: Duration,
        max_async_events: usize,
        now: Instant,
    ) -> AdminQueue {
        let mut queue =
            AdminQueue { lane, nsid, keep_alive, next: now + keep_alive / 2, sent: None, identified: None };
        if max_async_events > 0 {
            queue.submit(async_event_request(), Data::None, AdminTag::Event);
        }
        queue
    }

    /// Handles timeouts: sends Keep Alive when it is due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Result<(), DisconnectReason> {
        // No admin command here sends data, so none completes here.
        self.lane.handle_timeout(now, &mut Vec::new())?;
        if self.keep_alive.is_zero() {
            return Ok(());
        }
        if self.sent.is_some_and(|sent| now >= sent + self.keep_alive) {
            return Err(DisconnectReason::KeepAliveTimeout);
        }
        if now >= self.next && self.sent.is_none() {
            self.sent = Some(now);
            self.next = now + self.keep_alive / 2;
            self.submit(keep_alive(), Data::None, AdminTag::KeepAlive);
        }
        Ok(())
    }

    /// Handles a completion. Returns the description of a changed namespace, without its generation, once it is
    /// complete.
    ///
    /// # Errors
    /// The association cannot be used; the next connect identifies everything again.
    pub(crate) fn on_completed(
        &mut self,
        completed: Completed,
    ) -> Result<Option<NamespaceInfo>, DisconnectReason> {
        let status = completed.entry.status;
        let is_success = status.is_success() && completed.digest_ok;
        match AdminTag::from_tag(completed.tag) {
            Some(AdminTag::KeepAlive) if is_success => self.sent = None,
            Some(AdminTag::KeepAlive) => {
                return Err(DisconnectReason::Violation(format!(
                    "Keep Alive failed: {}",
                    completed.entry.status
                )));
            }
            Some(AdminTag::Event) if is_success => self.on_event(AsyncEvent(completed.entry.dw0))?,
            Some(AdminTag::Event) => {
                log::debug!("target rejects event requests: {}", completed.entry.status)
            }
            Some(AdminTag::Namespace) if is_success => {
                self.identified = completed.buffer;
                self.identify(Cns::NamespaceDescriptors, AdminTag::Descriptors)?;
            }
            Some(AdminTag::Descriptors) if is_success || connect::has_no_descriptors(status) => {
                let Some(identified) = self.identified.take() else { return Ok(None) };
                let data = identified.as_slice().unwrap_or_default();
                let descriptors = completed.buffer.as_ref().filter(|_| is_success).and_then(Buffer::as_slice);
                let namespace = connect::namespace(self.nsid, data, descriptors);
                let went_away = || DisconnectReason::Violation(format!("namespace {} went away", self.nsid));
                return namespace.map(Some).ok_or_else(went_away);
            }
            Some(AdminTag::Namespace | AdminTag::Descriptors) => {
                let what = format!("Identify of namespace {} after a notice failed: {status}", self.nsid);
                return Err(DisconnectReason::Violation(what));
            }
            Some(AdminTag::Log) | None => {}
        }
        Ok(None)
    }

    fn on_event(&mut self, event: AsyncEvent) -> Result<(), DisconnectReason> {
        log::info!("target reports event: {event:?}");
        let page = GetLogPageCommand {
            lid: event.log_page(),
            ..GetLogPageCommand::new(LogPage::Error, 0, LOG_BYTES)
        };
        self.submit(page.entry(), Data::Read(Buffer::contiguous(LOG_BYTES as usize)), AdminTag::Log);
        if event.as_notice() == Some(Notice::NamespaceAttributeChanged) {
            self.identify(Cns::Namespace, AdminTag::Namespace)?;
        }
        self.submit(async_event_request(), Data::None, AdminTag::Event);
        Ok(())
    }

    /// Identifies the namespace. Without the reply, no request may be sent to it.
    fn identify(&mut self, cns: Cns, tag: AdminTag) -> Result<(), DisconnectReason> {
        let buffer = Buffer::contiguous(IdentifyCommand::DATA_LEN as usize);
        let entry = IdentifyCommand::new(cns, self.nsid).entry();
        if self.submit(entry, Data::Read(buffer), tag) {
            Ok(())
        } else {
            Err(DisconnectReason::Violation("notices without completions of admin commands".to_owned()))
        }
    }

    /// Returns `false` if the queue is full.
    fn submit(&mut self, entry: SubmissionEntry, data: Data, tag: AdminTag) -> bool {
        match self.lane.conn.reserve() {
            Ok(vacancy) => {
                vacancy.submit(entry, data, tag as u64);
                true
            }
            Err(refusal) => {
                log::warn!("{tag:?} not sent: {refusal}");
                false
            }
        }
    }
}

/// Purpose of an admin command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdminTag {
    KeepAlive,
    Event,
    Log,
    Namespace,
    Descriptors,
}

impl AdminTag {
    fn from_tag(tag: u64) -> Option<AdminTag> {
        [AdminTag::KeepAlive, AdminTag::Event, AdminTag::Log, AdminTag::Namespace, AdminTag::Descriptors]
            .into_iter()
            .find(|known| *known as u64 == tag)
    }
}

/// Length of the changed namespace list, the longest page that an event refers to here.
const LOG_BYTES: u32 = 4096;
