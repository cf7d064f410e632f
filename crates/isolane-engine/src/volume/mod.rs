//! Volumes: the engine connects to targets, and applications put commands into rings.
//!
//! ```text
//! Queue::look ─ take ─ Submission::decode ─ Payloads::lend ─ Lanes::submit ─ Client
//!             ─ Lanes::turn ─ Client::turn ─ Member ─ deliver ─ Outcome::encode ─ notice
//! ```
//!
//! Sessions that open the same URI with the same options on the same core share one client, thus one
//! association and its lanes ([`Lanes`]). Each has a [`Queue`] of its own. An entry is copied once and
//! checked; payload lies in the session's memory and is sent from there, or received into it, as foreign
//! memory, but through private memory where a digest is computed. Invariants: a session has at most as many
//! commands under way as its ring of outcomes has room for, so that none ever waits for it to take one; all
//! sessions together have at most as many as the lanes take, and take turns where that is not enough; the
//! memory of a session stays mapped until its last command has ended.

mod lanes;
mod ledger;
mod payloads;
mod queue;

use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_host::attached::wire::Details;
use isolane_host::{IoChoice, Options, Uri};
use isolane_reactor::Mode;

use self::lanes::{Lanes, Wanted};
pub use self::ledger::Keeper;
use self::ledger::Ledger;
use self::queue::Queue;
use crate::service::{Built, Left, Plan};

/// What all volumes of an engine share.
pub(crate) struct Volumes {
    mode: Mode,
    spin: Duration,
    ledger: Arc<Ledger>,
}

impl Volumes {
    /// `keeper` keeps notes of associations beyond the end of this process; `left` are those that a process
    /// before this one has left there.
    pub fn new(
        mode: Mode,
        spin: Duration,
        keeper: Option<Arc<dyn Keeper>>,
        left: impl IntoIterator<Item = (u64, Vec<u8>)>,
    ) -> Volumes {
        Volumes { mode, spin, ledger: Arc::new(Ledger::new(keeper, left)) }
    }

    /// What it takes to have a volume.
    ///
    /// # Errors
    /// Why the request is none.
    pub fn plan(&self, uri: &str, details: &[u8]) -> Result<Plan, String> {
        let uri: Uri = uri.parse().map_err(|error: isolane_host::UriError| error.to_string())?;
        if uri.via.is_some() || !uri.cores.is_empty() {
            return Err("a volume is opened here by its place alone, without via and cores".into());
        }
        let (details, key) = Details::decode(details).map_err(|error| error.to_string())?;
        let wanted = Wanted {
            key: (uri.to_string(), key.to_vec()),
            uri,
            options: self.options(details.options),
            ledger: Arc::clone(&self.ledger),
        };
        let place = details.place;
        let build = Box::new(move |at| {
            let queue = Queue::new(at, place, |waker| Lanes::of(wanted, waker))?;
            Ok(Built { service: Box::new(queue), answer: None })
        });
        Ok(Plan { core: None, build, left: Left::default() })
    }

    /// Forgets what was left behind and can do nothing any more.
    pub fn expire(&self, now: Instant) {
        self.ledger.expire(now);
    }

    /// When to look for that again at the latest.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        self.ledger.next_look(now)
    }

    /// What the application may choose is its choice, all else is ours.
    fn options(&self, chosen: Options) -> Options {
        Options {
            mode: self.mode,
            // The core spins, too, once its lanes do not any more.
            spin: self.spin / 2,
            io: IoChoice::Epoll,
            // Bounded by what the lanes take.
            requests_max: usize::MAX,
            ..chosen
        }
    }
}
