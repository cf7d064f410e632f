//! A client as its caller drives it: of an association of its own, or of a volume at an isolated engine.
//!
//! It decides nothing but which of the two; the way is one branch a call.

use std::sync::Arc;
use std::time::Instant;

use isolane_reactor::Waker;
use rustix::fd::BorrowedFd;

use crate::attached::{self, EngineStatus};
use crate::classes::{Class, Classes};
use crate::client::{self, ConnectionStatus, Wait};
use crate::error::ConnectError;
use crate::fence::Fences;
use crate::info::{Info, NamespaceInfo};
use crate::options::Options;
use crate::predecessor::{Predecessor, Witness};
use crate::request::{Completion, Request};
use crate::unflushed::Era;
use crate::uri::Uri;

/// One volume, driven by its caller: over an association of its own, or, with [`Options::via`] or
/// `?via=engine` in the URI, through an isolated engine.
///
/// ```no_run
/// use isolane_host::{Buffer, Client, Options, Request, Wait};
///
/// # fn main() -> Result<(), isolane_host::ConnectError> {
/// let uri = "nvme+tcp://127.0.0.1:4420".parse().expect("a well-formed URI");
/// let mut client = Client::connect(&uri, Options::default())?;
/// for tag in 0..32 {
///     client.submit(0, Request::Read { lba: tag * 8, buffer: Buffer::contiguous(4096) }, tag);
/// }
/// let mut completions = Vec::new();
/// while completions.len() < 32 {
///     client.turn(&mut completions, Wait::Forever);
/// }
/// client.close();
/// # Ok(())
/// # }
/// ```
///
/// It may be handed to another thread, but not often: its reactor settles there anew.
///
/// Turn one with an association of its own at least twice per keep-alive timeout, or the target ends the
/// association; the client then connects anew. Through an engine, that is the engine's business.
pub struct Client(Way);

// Moved seldom, and used for every request: no pointer in between.
#[allow(clippy::large_enum_variant)]
enum Way {
    Own(client::Client),
    Attached(attached::Client),
}

impl Client {
    /// Connects and chooses the volume: the URI's namespace, or the only one.
    ///
    /// # Errors
    /// Why there is no connection, and what to do. [`ConnectError::Unsupported`] if the options or the URI
    /// name cores: those are for volumes, which have a thread on each. [`ConnectError::Engine`].
    pub fn connect(uri: &Uri, options: Options) -> Result<Client, ConnectError> {
        match uri.is_attached(&options) {
            true => Ok(Client(Way::Attached(attached::Client::connect(uri, options)?))),
            false => Ok(Client(Way::Own(client::Client::connect(uri, options)?))),
        }
    }

    /// Connects in the place of a process that was killed, over an association of its own, and lets a witness
    /// know of every association, so that this process may be killed, too. Nothing is written before all that
    /// were left are known dead, by the rule of [`fence`](crate::fence); they had ended, with all of their
    /// connections, before this call. Each goes with the key of its note. If this process is killed its
    /// connections are reset.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_after(
        uri: &Uri,
        options: Options,
        witness: &Arc<dyn Witness>,
        left: &[(u64, Predecessor)],
    ) -> Result<Client, ConnectError> {
        Ok(Client(Way::Own(client::Client::connect_after(uri, options, witness, left)?)))
    }

    /// Connects as one of several clients of a volume, whose writes wait for the fences of each.
    pub(crate) fn connect_beside(
        uri: &Uri,
        options: Options,
        fences: Arc<Fences>,
    ) -> Result<Client, ConnectError> {
        match uri.is_attached(&options) {
            // The fences are the engine's.
            true => Client::connect(uri, options),
            false => Ok(Client(Way::Own(client::Client::connect_beside(uri, options, fences)?))),
        }
    }

    /// What the target told when the association was made; through an engine, of the namespaces only the one
    /// that requests go to.
    pub fn info(&self) -> &Info {
        match &self.0 {
            Way::Own(client) => client.info(),
            Way::Attached(client) => client.info(),
        }
    }

    /// The namespace that requests go to.
    pub fn namespace(&self) -> &NamespaceInfo {
        match &self.0 {
            Way::Own(client) => client.namespace(),
            Way::Attached(client) => client.namespace(),
        }
    }

    /// What a sleeping turn sleeps in, for a log line; or at which engine the volume is.
    pub fn io_description(&self) -> &str {
        match &self.0 {
            Way::Own(client) => client.io_description(),
            Way::Attached(client) => client.io_description(),
        }
    }

    /// Something that ends a waiting turn from any thread.
    pub fn waker(&self) -> Waker {
        match &self.0 {
            Way::Own(client) => client.waker(),
            Way::Attached(client) => client.waker(),
        }
    }

    /// Requests without a completion yet.
    pub fn outstanding(&self) -> usize {
        match &self.0 {
            Way::Own(client) => client.outstanding(),
            Way::Attached(client) => client.outstanding(),
        }
    }

    /// When the client wants to be turned even if nothing happens.
    pub(crate) fn housekeeping(&self) -> Instant {
        match &self.0 {
            Way::Own(client) => client.housekeeping(),
            Way::Attached(client) => client.housekeeping(),
        }
    }

    /// Whether the association is up, or the volume open at its engine; while it is not, requests wait.
    pub fn is_up(&self) -> bool {
        match &self.0 {
            Way::Own(client) => client.is_up(),
            Way::Attached(client) => client.is_up(),
        }
    }

    /// Whether the client has given up for good: every request fails.
    pub fn is_over(&self) -> bool {
        match &self.0 {
            Way::Own(client) => client.is_over(),
            Way::Attached(client) => client.is_over(),
        }
    }

    /// Why the client has given up for good; `None` unless [`Client::is_over`].
    pub fn end_reason(&self) -> Option<&ConnectError> {
        match &self.0 {
            Way::Own(client) => client.end_reason(),
            Way::Attached(client) => client.end_reason(),
        }
    }

    /// The lanes that requests of this client are spread over, by class.
    pub fn lanes(&self) -> Classes {
        match &self.0 {
            Way::Own(client) => client.lanes(),
            Way::Attached(client) => client.lanes(),
        }
    }

    /// Every connection of the association, the admin queue first, then lanes by class; none while it is
    /// down, or if it is an [engine's](Client::engine). One thread drives all of them: the one that turns the client.
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        match &self.0 {
            Way::Own(client) => client.connections(),
            Way::Attached(_) => Vec::new(),
        }
    }

    /// At which engine the volume is; none if this process has connected to the target itself, and while the
    /// engine is started anew.
    pub fn engine(&self) -> Option<EngineStatus> {
        match &self.0 {
            Way::Own(_) => None,
            Way::Attached(client) => client.status(),
        }
    }

    /// The era of the target that acknowledged the last commands: another one if it lost acknowledged writes in
    /// between, or may have.
    pub fn era(&self) -> Era {
        match &self.0 {
            Way::Own(client) => client.era(),
            Way::Attached(client) => client.era(),
        }
    }

    /// Flushes no longer fail for acknowledged writes that the target has lost: the caller serves several others
    /// with this client, and has each of them compare the [`Client::era`] of its writes with that of its flush.
    pub fn leave_losses_to_caller(&mut self) {
        match &mut self.0 {
            Way::Own(client) => client.leave_losses_to_caller(),
            Way::Attached(client) => client.leave_losses_to_caller(),
        }
    }

    /// Takes a request in; `tag` comes back in its completion. It is sent by the next turn, together with all
    /// others. What cannot be taken is completed with an error by the next turn.
    ///
    /// `lane` counts from 0 within the class that serves the request: reads go to the read class if it has
    /// lanes, all else to the default class.
    #[inline]
    pub fn submit(&mut self, lane: usize, request: Request, tag: u64) {
        let class = Class::of(&request);
        self.submit_to(class, lane, request, tag);
    }

    /// As [`Client::submit`], for a request that asks for a class. If that has no lanes, another
    /// [serves](Classes::serving) it.
    #[inline]
    pub fn submit_to(&mut self, class: Class, lane: usize, request: Request, tag: u64) {
        match &mut self.0 {
            Way::Own(client) => client.submit_to(class, lane, request, tag),
            Way::Attached(client) => client.submit_to(class, lane, request, tag),
        }
    }

    /// One turn: sends what is queued, receives what has come, and appends completions. Waits as told if
    /// there is nothing to do; a [`Client::waker`] ends the wait. Returns how many completions were appended.
    #[inline]
    pub fn turn(&mut self, completions: &mut Vec<Completion>, wait: Wait) -> usize {
        match &mut self.0 {
            Way::Own(client) => client.turn(completions, wait),
            Way::Attached(client) => client.turn(completions, wait),
        }
    }

    /// Sends what is queued.
    #[inline]
    pub(crate) fn transmit(&mut self) {
        match &mut self.0 {
            Way::Own(client) => client.transmit(),
            Way::Attached(client) => client.transmit(),
        }
    }

    /// What becomes readable when something happens while the client rests; `None` if it waits in io_uring or
    /// for an engine, and so cannot rest.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            Way::Own(client) => client.descriptor(),
            Way::Attached(_) => None,
        }
    }

    /// Begins to rest, if there is nothing to do, and says when the client has to be turned even if nothing
    /// happens. It has to be turned before, after [`Client::end_rest`], if its descriptor becomes readable or
    /// a request is submitted. `None` if it has to be turned now; with
    /// [`Mode::Poll`](crate::Mode::Poll) that is always so.
    pub fn try_rest(&mut self) -> Option<Instant> {
        match &mut self.0 {
            Way::Own(client) => client.try_rest(),
            Way::Attached(_) => None,
        }
    }

    /// Ends a rest; without one it does nothing.
    pub fn end_rest(&mut self) {
        match &mut self.0 {
            Way::Own(client) => client.end_rest(),
            Way::Attached(_) => {}
        }
    }

    /// Ends the association in order. What is still in flight gets no completion.
    pub fn close(self) {
        match self.0 {
            Way::Own(client) => client.close(),
            Way::Attached(client) => client.close(),
        }
    }
}
