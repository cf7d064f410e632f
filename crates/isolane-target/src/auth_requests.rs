//! Exponentiations of hosts that authenticate, which wait for a side thread.
//!
//! Addresses take turns, so that a host does not wait for all requests of an address that sends many. Invariant: the
//! number of requests is bounded, and one address cannot use up the queue.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Weak;

use isolane_proto::auth::Work;
use parking_lot::{Condvar, Mutex};

use crate::newcomers::network;
use crate::slab::LaneId;

/// An exponentiation, and the lane that waits for it.
pub(crate) struct AuthRequest {
    pub work: Work,
    pub lane: LaneId,
    /// Core that owns the lane.
    pub core: usize,
    pub peer: IpAddr,
    /// Dropped when the lane no longer waits: its connection has ended, at the latest because its time to
    /// authenticate is over.
    pub waits: Weak<()>,
}

/// The queue is full, and the address has as many requests in it as any other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// Requests of all cores that no thread has taken.
#[derive(Default)]
pub(crate) struct AuthRequests {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// In the order of their arrival.
    waiting: VecDeque<Waiting>,
    /// Round of the request that was taken last. Each round has at most one request of each address.
    round: u64,
    is_closed: bool,
}

struct Waiting {
    request: AuthRequest,
    network: IpAddr,
    round: u64,
}

impl AuthRequests {
    /// Queues a request. If the queue is full, it displaces the newest request of the address with the most of them,
    /// which the caller must refuse.
    pub(crate) fn send(&self, request: AuthRequest) -> Result<Option<AuthRequest>, QueueFull> {
        let mut queue = self.queue.lock();
        queue.waiting.retain(|waiting| waiting.request.waits.strong_count() > 0);
        if queue.is_closed {
            return Err(QueueFull);
        }
        let network = network(request.peer);
        let displaced =
            if queue.waiting.len() < MAX_REQUESTS { None } else { Some(queue.displace(network)?) };
        let last = queue.waiting.iter().rev().find(|waiting| waiting.network == network);
        let round = last.map_or(queue.round, |last| last.round) + 1;
        queue.waiting.push_back(Waiting { request, network, round });
        self.changed.notify_one();
        Ok(displaced)
    }

    /// Ends the threads after the exponentiations in progress.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        queue.waiting.clear();
        self.changed.notify_all();
    }

    /// Waits for a request that a lane waits for; `None` once the queue is closed.
    pub(crate) fn next(&self) -> Option<AuthRequest> {
        let mut queue = self.queue.lock();
        loop {
            if queue.is_closed {
                return None;
            }
            match queue.take() {
                Some(request) if request.waits.strong_count() > 0 => return Some(request),
                Some(_) => {}
                None => self.changed.wait(&mut queue),
            }
        }
    }
}

impl Queue {
    /// Removes the oldest request of the lowest round.
    fn take(&mut self) -> Option<AuthRequest> {
        let (at, _) = self.waiting.iter().enumerate().min_by_key(|(at, waiting)| (waiting.round, *at))?;
        let Waiting { request, round, .. } = self.waiting.remove(at)?;
        self.round = round;
        Some(request)
    }

    /// Removes the newest request of the address with the most, unless `newcomer` has as many.
    fn displace(&mut self, newcomer: IpAddr) -> Result<AuthRequest, QueueFull> {
        let mut counts = HashMap::<IpAddr, usize>::new();
        self.waiting.iter().for_each(|waiting| *counts.entry(waiting.network).or_default() += 1);
        let own = counts.get(&newcomer).copied().unwrap_or_default();
        let (largest, count) = counts.into_iter().max_by_key(|(_, count)| *count).ok_or(QueueFull)?;
        let at = self.waiting.iter().rposition(|waiting| waiting.network == largest && count > own);
        at.and_then(|at| self.waiting.remove(at)).map(|waiting| waiting.request).ok_or(QueueFull)
    }
}

/// Most exponentiations that wait: about a second of them with FFDHE3072.
const MAX_REQUESTS: usize = 256;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use isolane_proto::auth::{
        ExchangeConfig, HostNegotiating, Key, KeyPair, Nonces, Parties, Policy, Received, TargetExchange,
    };
    use isolane_wire::Nqn;

    use super::*;
    use crate::slab::Slab;

    /// An exponentiation of a target.
    fn work() -> Work {
        let key = Key::parse("DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:").unwrap();
        let config = ExchangeConfig {
            parties: Parties { host: Nqn::discovery(), subsystem: Nqn::discovery() },
            keys: vec![KeyPair { host: key, controller: None }],
            policy: Policy::default(),
            is_mutual: false,
        };
        let (_, negotiate) = HostNegotiating::start(config.clone(), 1, Nonces::from_seed(1)).unwrap();
        match TargetExchange::new(config).handle_message(&negotiate, Nonces::from_seed(2)) {
            Received::Compute(work) => work,
            Received::Done => panic!("the group needs an exponentiation"),
        }
    }

    /// Sends requests, and keeps their lanes waiting.
    struct Lanes {
        requests: AuthRequests,
        waits: Arc<()>,
        slab: Slab<()>,
    }

    impl Lanes {
        fn new() -> Lanes {
            Lanes { requests: AuthRequests::default(), waits: Arc::new(()), slab: Slab::default() }
        }

        fn send(&mut self, from: &str) -> Result<Option<IpAddr>, QueueFull> {
            let (lane, peer) = (LaneId { core: 0, lane: self.slab.insert(()) }, from.parse().unwrap());
            let waits = Arc::downgrade(&self.waits);
            let sent = self.requests.send(AuthRequest { work: work(), lane, core: 0, peer, waits });
            sent.map(|displaced| displaced.map(|request| request.peer))
        }

        fn next(&self) -> String {
            self.requests.next().unwrap().peer.to_string()
        }
    }

    #[test]
    fn addresses_take_turns() {
        let mut lanes = Lanes::new();
        for from in ["10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.3"] {
            lanes.send(from).unwrap();
        }
        let first = [lanes.next(), lanes.next(), lanes.next()];
        assert_eq!(first, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        // A later request does not pass the second one of another address.
        lanes.send("10.0.0.3").unwrap();
        let rest = [lanes.next(), lanes.next(), lanes.next(), lanes.next()];
        assert_eq!(rest, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1"]);
    }

    #[test]
    fn full_queue_has_space_for_other_addresses() {
        let mut lanes = Lanes::new();
        for _ in 0..MAX_REQUESTS {
            assert_eq!(lanes.send("2001:db8:1:2::1"), Ok(None));
        }
        assert_eq!(lanes.send("2001:db8:1:2::9"), Err(QueueFull), "the same network");
        for _ in 0..MAX_REQUESTS / 2 {
            assert_eq!(lanes.send("10.0.0.1"), Ok(Some("2001:db8:1:2::1".parse().unwrap())));
        }
        assert_eq!(lanes.send("10.0.0.1"), Err(QueueFull), "it has as many as the other");
        assert_eq!(lanes.requests.queue.lock().waiting.len(), MAX_REQUESTS);
    }

    #[test]
    fn requests_of_ended_lanes_make_space() {
        let mut lanes = Lanes::new();
        for _ in 0..MAX_REQUESTS {
            lanes.send("10.0.0.1").unwrap();
        }
        lanes.waits = Arc::new(());
        assert_eq!(lanes.send("10.0.0.1"), Ok(None));
        assert_eq!(lanes.requests.queue.lock().waiting.len(), 1);
        lanes.next();
        lanes.requests.close();
        assert!(lanes.send("10.0.0.1").is_err() && lanes.requests.next().is_none());
    }
}
