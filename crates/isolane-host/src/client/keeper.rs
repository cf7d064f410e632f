//! The admin queue in use: Keep Alive, and the events that the target tells of.
//!
//! It holds one Asynchronous Event Request at the target. An event is read away with Get Log Page, so that
//! the next can come (Base 1.4 §5.2); a changed namespace is identified anew, with its descriptor list.
//! Invariant: while keep alive is on, a command is on its way at least twice per timeout, and one that is not
//! answered within the timeout means the association is lost.

use std::time::{Duration, Instant};

use isolane_memory::Buffer;
use isolane_proto::host::{Completed, Data};
use isolane_reactor::Reactor;
use isolane_wire::SubmissionEntry;
use isolane_wire::admin::{
    AsyncEvent, Cns, GetLogPageCommand, IdentifyCommand, LogPage, Notice, async_event_request, keep_alive,
};

use super::lane::{Lane, Loss};
use crate::setup;

/// The admin queue in use.
pub(crate) struct Keeper {
    pub lane: Lane,
    nsid: u32,
    keep_alive: Duration,
    next: Instant,
    /// When the Keep Alive that is on its way was sent.
    sent: Option<Instant>,
    /// Identify Namespace data of a changed namespace whose descriptor list is still to come.
    identified: Option<Buffer>,
}

/// The data that tells what a changed namespace is now.
pub(crate) struct Identified {
    /// Identify Namespace data.
    pub namespace: Buffer,
    /// The descriptor list, from a controller that has such lists.
    pub descriptors: Option<Buffer>,
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
        let mut keeper =
            Keeper { lane, nsid, keep_alive, next: now + keep_alive / 2, sent: None, identified: None };
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

    /// Takes an answer in. Returns what the namespace is now, once that is known after a notice.
    ///
    /// # Errors
    /// The association cannot be used further; after the next Connect everything is identified again.
    pub(crate) fn on_answer(&mut self, answer: Completed) -> Result<Option<Identified>, Loss> {
        let status = answer.entry.status;
        let is_success = status.is_success() && answer.intact;
        match Mark::of(answer.tag) {
            Some(Mark::KeepAlive) if is_success => self.sent = None,
            Some(Mark::KeepAlive) => {
                return Err(Loss::Misbehaved(format!("Keep Alive failed: {}", answer.entry.status)));
            }
            Some(Mark::Event) if is_success => self.on_event(AsyncEvent(answer.entry.dw0))?,
            Some(Mark::Event) => log::debug!("the target holds no event request: {}", answer.entry.status),
            Some(Mark::Namespace) if is_success => {
                self.identified = answer.buffer;
                self.identify(Cns::NamespaceDescriptors, Mark::Descriptors)?;
            }
            Some(Mark::Descriptors) if is_success || setup::has_no_descriptors(status) => {
                let descriptors = answer.buffer.filter(|_| is_success);
                let identified = self.identified.take();
                return Ok(identified.map(|namespace| Identified { namespace, descriptors }));
            }
            Some(Mark::Namespace | Mark::Descriptors) => {
                let what = format!("Identify of namespace {} after a notice failed: {status}", self.nsid);
                return Err(Loss::Misbehaved(what));
            }
            Some(Mark::Log) | None => {}
        }
        Ok(None)
    }

    fn on_event(&mut self, event: AsyncEvent) -> Result<(), Loss> {
        log::info!("the target tells of an event: {event:?}");
        let page = GetLogPageCommand {
            lid: event.log_page(),
            ..GetLogPageCommand::new(LogPage::Error, 0, LOG_BYTES)
        };
        self.submit(page.entry(), Data::Read(Buffer::contiguous(LOG_BYTES as usize)), Mark::Log);
        if event.as_notice() == Some(Notice::NamespaceAttributeChanged) {
            self.identify(Cns::Namespace, Mark::Namespace)?;
        }
        self.submit(async_event_request(), Data::None, Mark::Event);
        Ok(())
    }

    /// Asks what the namespace is. Without the answer no request may go to it.
    fn identify(&mut self, cns: Cns, mark: Mark) -> Result<(), Loss> {
        let buffer = Buffer::contiguous(IdentifyCommand::DATA_LEN as usize);
        let entry = IdentifyCommand::new(cns, self.nsid).entry();
        match self.submit(entry, Data::Read(buffer), mark) {
            true => Ok(()),
            false => Err(Loss::Misbehaved("it sends notices and answers no admin command".to_owned())),
        }
    }

    /// Returns `false` if the queue has no room.
    fn submit(&mut self, entry: SubmissionEntry, data: Data, mark: Mark) -> bool {
        match self.lane.vacancy() {
            Ok(vacancy) => {
                vacancy.submit(entry, data, mark as u64);
                true
            }
            Err(refusal) => {
                log::warn!("{mark:?} is left out: {refusal}");
                false
            }
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
    Descriptors,
}

impl Mark {
    fn of(mark: u64) -> Option<Mark> {
        [Mark::KeepAlive, Mark::Event, Mark::Log, Mark::Namespace, Mark::Descriptors]
            .into_iter()
            .find(|known| *known as u64 == mark)
    }
}

/// The changed namespace list, the longest page that an event points to here.
const LOG_BYTES: u32 = 4096;
