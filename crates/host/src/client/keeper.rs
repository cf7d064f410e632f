//! The admin queue in use: Keep Alive, and the events that the target tells of.
//!
//! It holds one Asynchronous Event Request at the target. An event is read away with Get Log Page, so that
//! the next can come (Base 1.4 §5.2); a changed namespace is identified anew. Invariant: while keep alive is
//! on, a command is on its way at least twice per timeout, and one that is not answered within the timeout
//! means the association is lost.

use std::time::{Duration, Instant};

use isolane_memory::Buffer;
use isolane_proto::host::{Completed, Data};
use isolane_reactor::Reactor;
use isolane_wire::SubmissionEntry;
use isolane_wire::admin::{
    AsyncEvent, Cns, GetLogPageCommand, IdentifyCommand, LogPage, Notice, async_event_request, keep_alive,
};

use super::lane::{Lane, Loss};

/// The admin queue in use.
pub(crate) struct Keeper {
    pub lane: Lane,
    nsid: u32,
    keep_alive: Duration,
    next: Instant,
    /// When the Keep Alive that is on its way was sent.
    sent: Option<Instant>,
}

impl Keeper {
    /// Starts with one event request if the target holds any.
    pub(crate) fn new(
        lane: Lane,
        nsid: u32,
        keep_alive: Duration,
        async_events_max: usize,
        now: Instant,
    ) -> Keeper {
        let mut keeper = Keeper { lane, nsid, keep_alive, next: now + keep_alive / 2, sent: None };
        if async_events_max > 0 {
            keeper.submit(async_event_request(), Data::None, Mark::Event);
        }
        keeper
    }

    /// Looks at the time: sends Keep Alive when it is due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Result<(), Loss> {
        // No admin command in use here carries data to the target, so none can end by itself.
        self.lane.handle_timeout(now, &mut Vec::new())?;
        if self.keep_alive.is_zero() {
            return Ok(());
        }
        if self.sent.is_some_and(|sent| now >= sent + self.keep_alive) {
            return Err(Loss::KeepAliveTimeout);
        }
        if now >= self.next && self.sent.is_none() {
            self.sent = Some(now);
            self.next = now + self.keep_alive / 2;
            self.submit(keep_alive(), Data::None, Mark::KeepAlive);
        }
        Ok(())
    }

    /// Sends what is queued.
    pub(crate) fn transmit(&mut self, reactor: &mut Reactor, now: Instant) -> Result<(), Loss> {
        // No admin command in use here carries data to the target, so none can end while it is sent.
        self.lane.transmit(reactor, usize::MAX, now, &mut Vec::new())
    }

    /// Takes an answer in. Identify Namespace data comes out when the namespace changed.
    pub(crate) fn on_answer(&mut self, answer: Completed) -> Result<Option<Buffer>, Loss> {
        let is_success = answer.entry.status.is_success() && answer.intact;
        match Mark::of(answer.tag) {
            Some(Mark::KeepAlive) if is_success => self.sent = None,
            Some(Mark::KeepAlive) => {
                return Err(Loss::Misbehaved(format!("Keep Alive failed: {}", answer.entry.status)));
            }
            Some(Mark::Event) if is_success => self.on_event(AsyncEvent(answer.entry.dw0)),
            Some(Mark::Event) => log::debug!("the target holds no event request: {}", answer.entry.status),
            Some(Mark::Namespace) if is_success => return Ok(answer.buffer),
            Some(Mark::Log | Mark::Namespace) | None => {}
        }
        Ok(None)
    }

    fn on_event(&mut self, event: AsyncEvent) {
        log::info!("the target tells of an event: {event:?}");
        let page = GetLogPageCommand {
            lid: event.log_page(),
            ..GetLogPageCommand::new(LogPage::Error, 0, LOG_BYTES)
        };
        self.submit(page.entry(), Data::Read(Buffer::contiguous(LOG_BYTES as usize)), Mark::Log);
        if event.as_notice() == Some(Notice::NamespaceAttributeChanged) {
            let command = IdentifyCommand::new(Cns::Namespace, self.nsid);
            let buffer = Buffer::contiguous(IdentifyCommand::DATA_LEN as usize);
            self.submit(command.entry(), Data::Read(buffer), Mark::Namespace);
        }
        self.submit(async_event_request(), Data::None, Mark::Event);
    }

    fn submit(&mut self, entry: SubmissionEntry, data: Data, mark: Mark) {
        match self.lane.vacancy() {
            Ok(vacancy) => drop(vacancy.submit(entry, data, mark as u64)),
            Err(refusal) => log::warn!("{mark:?} is left out: {refusal}"),
        }
    }
}

/// What an admin command was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    KeepAlive,
    Event,
    Log,
    Namespace,
}

impl Mark {
    fn of(mark: u64) -> Option<Mark> {
        [Mark::KeepAlive, Mark::Event, Mark::Log, Mark::Namespace]
            .into_iter()
            .find(|known| *known as u64 == mark)
    }
}

/// The changed namespace list, the longest page that an event points to here.
const LOG_BYTES: u32 = 4096;
