//! Socket table of a reactor, without system calls.
//!
//! A socket is *ready* from the kernel's notification until a receive finds it empty. It is *hot* while
//! it had bytes recently: a spinning reactor receives from it directly, which is cheaper than polling
//! the kernel. A socket that is neither is *idle* and waits for a notification.
//!
//! Invariant: the active list holds every socket that is ready or hot, and every other socket that is
//! not paused is armed, so no notification is lost.

use crate::Token;
use crate::key::{Key, Kind};
use crate::zerocopy_tracker::ZeroCopyTracker;
use rustix::fd::OwnedFd;

#[derive(Debug)]
pub(crate) struct SocketEntry {
    pub socket: OwnedFd,
    pub token: Token,
    /// Not known to be empty.
    pub ready: bool,
    /// The peer closed or the connection broke: a short receive does not mean empty.
    pub hung_up: bool,
    pub paused: bool,
    /// A read notification is pending.
    pub read_armed: bool,
    /// A write notification is pending.
    pub write_armed: bool,
    /// The driver waits for [`Event::Writable`](crate::Event::Writable).
    pub wants_write: bool,
    /// Zero-copy sends, if enabled.
    pub zerocopy: Option<Box<ZeroCopyTracker>>,
    active: bool,
    /// Empty reads while other sockets had work.
    empty_reads: u8,
}

impl SocketEntry {
    pub fn key(&self, kind: Kind) -> Key {
        Key { kind, generation: self.token.generation, index: self.token.index }
    }

    /// Records a receive with bytes. `short`: the plan had space for more.
    pub fn on_received(&mut self, short: bool) {
        self.empty_reads = 0;
        self.ready = !short || self.hung_up;
    }

    /// Records an empty read. `counts`: other sockets had work in this turn.
    pub fn on_empty_read(&mut self, counts: bool) {
        self.ready = false;
        self.hung_up = false;
        self.empty_reads = self.empty_reads.saturating_add(u8::from(counts));
    }
}

/// All sockets and the list of active ones.
#[derive(Debug, Default)]
pub(crate) struct SocketTable {
    slots: Vec<Option<SocketEntry>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    active: Vec<u32>,
    cursor: usize,
}

impl SocketTable {
    pub fn insert(&mut self, socket: OwnedFd) -> &mut SocketEntry {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.generations.push(0);
            (self.slots.len() - 1) as u32
        });
        let token = Token { index, generation: self.generations[index as usize] };
        self.active.push(index);
        self.slots[index as usize].insert(SocketEntry {
            socket,
            token,
            ready: true,
            hung_up: false,
            paused: false,
            read_armed: false,
            write_armed: false,
            wants_write: false,
            zerocopy: None,
            active: true,
            empty_reads: 0,
        })
    }

    pub fn remove(&mut self, token: Token) -> Option<SocketEntry> {
        self.get(token)?;
        let index = token.index as usize;
        self.generations[index] = (self.generations[index] + 1) & Key::MAX_GENERATION;
        let entry = self.slots[index].take()?;
        if entry.active {
            self.active.retain(|&active| active != token.index);
        }
        self.free.push(token.index);
        Some(entry)
    }

    pub fn get(&self, token: Token) -> Option<&SocketEntry> {
        self.slots.get(token.index as usize)?.as_ref().filter(|entry| entry.token == token)
    }

    pub fn get_mut(&mut self, token: Token) -> Option<&mut SocketEntry> {
        self.slots.get_mut(token.index as usize)?.as_mut().filter(|entry| entry.token == token)
    }

    /// Returns the socket of a backend event unless it was removed.
    pub fn by_key(&mut self, key: Key) -> Option<&mut SocketEntry> {
        self.get_mut(Token { index: key.index, generation: key.generation })
    }

    pub fn iter(&self) -> impl Iterator<Item = &SocketEntry> {
        self.slots.iter().flatten()
    }

    /// Returns the sockets with zero-copy sends in flight.
    pub fn with_zerocopy_in_flight(&self) -> Vec<Token> {
        let has_zerocopy_in_flight = |entry: &&SocketEntry| {
            entry.zerocopy.as_ref().is_some_and(|zerocopy| zerocopy.has_zerocopy_in_flight())
        };
        self.iter().filter(has_zerocopy_in_flight).map(|entry| entry.token).collect()
    }

    /// Adds a socket to the active list and resets its empty reads.
    pub fn activate(&mut self, token: Token) {
        if let Some(entry) = self.get_mut(token) {
            entry.empty_reads = 0;
            if !entry.active {
                entry.active = true;
                self.active.push(token.index);
            }
        }
    }

    /// Visits up to `limit` active sockets: calls `report` for each that is worth a receive, and
    /// `cool` for each that leaves the list and must be armed.
    pub fn poll_active(
        &mut self,
        limit: usize,
        is_spinning: bool,
        mut report: impl FnMut(Token),
        mut cool: impl FnMut(&mut SocketEntry),
    ) {
        let max_empty_reads = if self.active.len() > MAX_HOT_SOCKETS { 1 } else { MAX_EMPTY_READS };
        for _ in 0..limit.min(self.active.len()) {
            if self.cursor >= self.active.len() {
                self.cursor = 0;
            }
            let index = self.active[self.cursor] as usize;
            let entry = self.slots[index].as_mut().filter(|entry| !entry.paused);
            match entry {
                Some(entry) if entry.ready || (is_spinning && entry.empty_reads < max_empty_reads) => {
                    report(entry.token);
                    self.cursor += 1;
                }
                entry => {
                    if let Some(entry) = entry {
                        cool(entry);
                    }
                    self.deactivate_at_cursor();
                }
            }
        }
    }

    fn deactivate_at_cursor(&mut self) {
        let index = self.active.swap_remove(self.cursor);
        if let Some(entry) = &mut self.slots[index as usize] {
            entry.active = false;
        }
    }

    /// Whether the active list is so long that every empty read counts.
    pub fn over_hot_limit(&self) -> bool {
        self.active.len() > MAX_HOT_SOCKETS
    }

    /// Whether exactly one socket is active.
    pub fn is_one_active(&self) -> bool {
        self.active.len() == 1
    }

    /// Whether every socket waits for a notification.
    pub fn is_all_idle(&self) -> bool {
        self.active.is_empty()
    }
}

/// With more active sockets, an empty read costs more than a notification.
const MAX_HOT_SOCKETS: usize = 64;
/// A socket becomes idle after this many empty reads in turns in which others had work.
const MAX_EMPTY_READS: u8 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> OwnedFd {
        std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket").into()
    }

    fn round(sockets: &mut SocketTable, is_spinning: bool) -> (Vec<Token>, usize) {
        let (mut reported, mut cooled) = (Vec::new(), 0);
        sockets.poll_active(64, is_spinning, |token| reported.push(token), |_| cooled += 1);
        (reported, cooled)
    }

    #[test]
    fn reports_ready_socket_until_empty_read() {
        let mut sockets = SocketTable::default();
        let token = sockets.insert(socket()).token;
        for _ in 0..3 {
            assert_eq!(round(&mut sockets, false), (vec![token], 0));
        }
        sockets.get_mut(token).expect("present").on_received(false);
        assert_eq!(round(&mut sockets, false), (vec![token], 0));
        sockets.get_mut(token).expect("present").on_received(true);
        assert_eq!(round(&mut sockets, false), (vec![], 1));
        assert!(sockets.is_all_idle());
    }

    #[test]
    fn hot_socket_cools_while_others_are_busy() {
        let mut sockets = SocketTable::default();
        let token = sockets.insert(socket()).token;
        for _ in 0..1000 {
            sockets.get_mut(token).expect("present").on_empty_read(false);
            assert_eq!(
                round(&mut sockets, true),
                (vec![token], 0),
                "an empty read in an idle turn does not count"
            );
        }
        for _ in 0..MAX_EMPTY_READS {
            sockets.get_mut(token).expect("present").on_empty_read(true);
        }
        assert_eq!(round(&mut sockets, true), (vec![], 1));
    }

    #[test]
    fn short_read_does_not_hide_hang_up() {
        let mut sockets = SocketTable::default();
        let token = sockets.insert(socket()).token;
        sockets.get_mut(token).expect("present").hung_up = true;
        sockets.get_mut(token).expect("present").on_received(true);
        assert_eq!(round(&mut sockets, false), (vec![token], 0));
    }

    #[test]
    fn paused_socket_is_not_reported_or_armed() {
        let mut sockets = SocketTable::default();
        let token = sockets.insert(socket()).token;
        sockets.get_mut(token).expect("present").paused = true;
        assert_eq!(round(&mut sockets, true), (vec![], 0));
        sockets.get_mut(token).expect("present").paused = false;
        sockets.activate(token);
        assert_eq!(round(&mut sockets, true), (vec![token], 0));
    }

    #[test]
    fn token_of_removed_socket_stays_invalid() {
        let mut sockets = SocketTable::default();
        let old = sockets.insert(socket()).token;
        assert!(sockets.remove(old).is_some());
        let new = sockets.insert(socket()).token;
        assert_eq!(old.index(), new.index());
        assert!(sockets.get(old).is_none() && sockets.remove(old).is_none());
        assert_eq!(round(&mut sockets, false).0, [new]);
    }

    #[test]
    fn turn_reports_bounded_sockets_in_rotation() {
        let mut sockets = SocketTable::default();
        let mut missing: Vec<Token> = (0..10).map(|_| sockets.insert(socket()).token).collect();
        for _ in 0..4 {
            let mut reported = 0;
            sockets.poll_active(
                3,
                false,
                |token| (reported += 1, missing.retain(|&it| it != token)).1,
                |_| (),
            );
            assert_eq!(reported, 3);
        }
        assert!(missing.is_empty());
    }
}
