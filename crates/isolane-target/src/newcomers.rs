//! Budgets of all cores for connections before Connect, and for connected queues whose host has not authenticated.
//!
//! A connection is a newcomer from its acceptance to a successful Connect or its end; these do not count in the budget of
//! connected queues. When the budget is exhausted, the next newcomer displaces the oldest one of the address that has the
//! most, so an address that opens many connections displaces its own. IPv6 addresses count by their first 64 bits, which
//! a peer cannot choose freely.
//!
//! A queue whose host must authenticate is in the second budget from its Connect to its proof or the end of its
//! connection. There, the address that has the most is refused.
//!
//! Invariant: the number of newcomers never exceeds the budget.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};

use parking_lot::Mutex;

use crate::slab::LaneId;

/// The newcomers of all cores.
#[derive(Debug)]
pub(crate) struct Newcomers {
    max: usize,
    table: Mutex<Table>,
}

/// Identifies a newcomer; lower means older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival(u64);

#[derive(Debug, Default)]
struct Table {
    arrivals: u64,
    len: usize,
    by_address: HashMap<IpAddr, BTreeMap<Arrival, LaneId>>,
    /// One entry for each address: number of newcomers, the oldest of them, and the address.
    by_count: BTreeSet<(usize, Reverse<Arrival>, IpAddr)>,
}

impl Newcomers {
    pub(crate) fn new(max: usize) -> Newcomers {
        Newcomers { max: max.max(1), table: Mutex::default() }
    }

    /// Returns the budget.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    pub(crate) fn len(&self) -> usize {
        self.table.lock().len
    }

    /// Adds a connection. Also returns the newcomer that it displaces, which the caller must close.
    pub(crate) fn enter(&self, from: IpAddr, lane: LaneId) -> (Arrival, Option<LaneId>) {
        self.table.lock().enter(self.max, from, lane)
    }

    /// Adds a connection like [`Newcomers::enter`], unless the budget is exhausted and its address has as many as any.
    pub(crate) fn try_enter(&self, from: IpAddr, lane: LaneId) -> Option<(Arrival, Option<LaneId>)> {
        let mut table = self.table.lock();
        let own = table.by_address.get(&network(from)).map_or(0, BTreeMap::len);
        let is_largest = table.by_count.last().is_some_and(|(most, ..)| own >= *most);
        (table.len < self.max || !is_largest).then(|| table.enter(self.max, from, lane))
    }

    /// Removes a newcomer that has connected its queue or has ended; no effect if it was displaced.
    pub(crate) fn remove(&self, from: IpAddr, arrival: Arrival) {
        self.table.lock().change(network(from), |lanes| _ = lanes.remove(&arrival));
    }
}

impl Table {
    fn enter(&mut self, max: usize, from: IpAddr, lane: LaneId) -> (Arrival, Option<LaneId>) {
        let displaced = if self.len < max { None } else { self.displace() };
        self.arrivals += 1;
        let arrival = Arrival(self.arrivals);
        self.change(network(from), |lanes| _ = lanes.insert(arrival, lane));
        (arrival, displaced)
    }

    fn displace(&mut self) -> Option<LaneId> {
        let (_, Reverse(oldest), address) = *self.by_count.last()?;
        let mut displaced = None;
        self.change(address, |lanes| displaced = lanes.remove(&oldest));
        displaced
    }

    /// Changes the newcomers of an address and updates the counts.
    fn change(&mut self, address: IpAddr, change: impl FnOnce(&mut BTreeMap<Arrival, LaneId>)) {
        let lanes = self.by_address.entry(address).or_default();
        let rank = |lanes: &BTreeMap<Arrival, LaneId>| {
            lanes.first_key_value().map(|(oldest, _)| (lanes.len(), Reverse(*oldest), address))
        };
        let (before, len_before) = (rank(lanes), lanes.len());
        change(lanes);
        let (after, len_after) = (rank(lanes), lanes.len());
        self.len = self.len - len_before + len_after;
        if let Some(before) = before {
            self.by_count.remove(&before);
        }
        match after {
            Some(after) => _ = self.by_count.insert(after),
            None => _ = self.by_address.remove(&address),
        }
    }
}

/// Returns the part of an address that a peer cannot choose freely.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab as Keys;

    fn lanes(count: usize) -> Vec<LaneId> {
        let mut keys = Keys::default();
        (0..count).map(|_| LaneId { core: 0, lane: keys.insert(()) }).collect()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn displaces_oldest_of_largest_address() {
        let (newcomers, lanes) = (Newcomers::new(4), lanes(7));
        let (one, many) = (ip("192.0.2.1"), ip("192.0.2.2"));
        let enter = |from, at: usize| newcomers.enter(from, lanes[at]).1;
        assert_eq!(enter(one, 0), None);
        assert!([1, 2, 3].map(|at| enter(many, at)).iter().all(Option::is_none));
        assert_eq!(enter(many, 4), Some(lanes[1]));
        assert_eq!(enter(one, 5), Some(lanes[2]));
        assert_eq!(enter(ip("192.0.2.3"), 6), Some(lanes[0]), "both have two, this is the oldest");
        assert_eq!(newcomers.len(), 4);
    }

    #[test]
    fn displaces_oldest_of_equal_addresses() {
        let (newcomers, lanes) = (Newcomers::new(3), lanes(4));
        let addresses = ["192.0.2.9", "192.0.2.5", "192.0.2.7", "192.0.2.1"].map(ip);
        let displaced: Vec<_> = (0..4).map(|at| newcomers.enter(addresses[at], lanes[at]).1).collect();
        assert_eq!(displaced, [None, None, None, Some(lanes[0])]);
    }

    #[test]
    fn refuses_largest_address_and_admits_others() {
        let (newcomers, lanes) = (Newcomers::new(3), lanes(8));
        let (many, one) = (ip("192.0.2.1"), ip("192.0.2.2"));
        let enter = |from, at: usize| newcomers.try_enter(from, lanes[at]).map(|(_, displaced)| displaced);
        assert_eq!([0, 1, 2].map(|at| enter(many, at)), [Some(None); 3]);
        assert_eq!(enter(many, 3), None);
        assert_eq!(enter(one, 4), Some(Some(lanes[0])));
        assert_eq!(enter(one, 5), Some(Some(lanes[1])));
        assert_eq!(enter(one, 6), None, "it has the most now");
        assert_eq!(enter(many, 7), Some(Some(lanes[4])));
        assert_eq!(newcomers.len(), 3);
    }

    #[test]
    fn forgets_addresses_without_newcomers() {
        let (newcomers, lanes) = (Newcomers::new(2), lanes(5));
        let from = ip("192.0.2.1");
        let (first, _) = newcomers.enter(from, lanes[0]);
        let (second, _) = newcomers.enter(from, lanes[1]);
        newcomers.remove(from, first);
        assert_eq!(newcomers.enter(from, lanes[2]).1, None);
        let (last, displaced) = newcomers.enter(from, lanes[3]);
        assert_eq!(displaced, Some(lanes[1]));
        newcomers.remove(from, second);
        assert_eq!(newcomers.len(), 2, "one that was displaced has left already");
        newcomers.remove(from, last);
        assert_eq!(newcomers.enter(from, lanes[4]).1, None);
        let table = newcomers.table.lock();
        assert_eq!((table.by_address.len(), table.by_count.len()), (1, 1));
    }

    #[test]
    fn groups_addresses_by_network() {
        assert_eq!(network(ip("2001:db8:1:2:3::4")), network(ip("2001:db8:1:2:ffff::1")));
        assert_ne!(network(ip("2001:db8:1:2::1")), network(ip("2001:db8:1:3::1")));
        assert_eq!(network(ip("::ffff:192.0.2.1")), ip("192.0.2.1"));
    }
}
