//! The sockets of a reactor and what is known about each: a table without system calls.
//!
//! A lane is *ready* from the moment the kernel said so until a receive found it empty. It is *hot* while it
//! lately had bytes: a spinning reactor then just tries to receive, which is cheaper than asking. A lane that
//! is neither is *cold* and waits for the kernel's word. The list of active lanes holds all that are ready or
//! hot, and every lane outside of it that is not paused is armed: so no wake-up is lost.

use crate::Token;
use crate::key::{Key, Kind};
use crate::ledger::Ledger;
use rustix::fd::OwnedFd;

#[derive(Debug)]
pub(crate) struct Lane {
    pub socket: OwnedFd,
    pub token: Token,
    /// Not known to be empty.
    pub is_ready: bool,
    /// The peer sends no more or the connection broke: a short receive does not mean empty.
    pub is_hung_up: bool,
    pub is_paused: bool,
    /// The kernel will say when there are bytes.
    pub is_read_armed: bool,
    /// The kernel will say when there is room.
    pub is_write_armed: bool,
    /// The driver waits for room.
    pub wants_write: bool,
    /// What was lent to the kernel, if that is enabled.
    pub ledger: Option<Box<Ledger>>,
    is_active: bool,
    /// Receives in vain while other lanes had work.
    misses: u8,
}

impl Lane {
    pub fn key(&self, kind: Kind) -> Key {
        Key { kind, generation: self.token.generation, index: self.token.index }
    }

    /// A receive brought bytes. `is_short` if the plan had room for more.
    pub fn on_received(&mut self, is_short: bool) {
        self.misses = 0;
        self.is_ready = !is_short || self.is_hung_up;
    }

    /// A receive brought nothing. `counts` if others had work meanwhile.
    pub fn on_missed(&mut self, counts: bool) {
        self.is_ready = false;
        self.is_hung_up = false;
        self.misses = self.misses.saturating_add(u8::from(counts));
    }
}

/// All lanes, and the active ones among them.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    slots: Vec<Option<Lane>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    active: Vec<u32>,
    cursor: usize,
}

impl Lanes {
    pub fn insert(&mut self, socket: OwnedFd) -> &mut Lane {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.generations.push(0);
            (self.slots.len() - 1) as u32
        });
        let token = Token { index, generation: self.generations[index as usize] };
        self.active.push(index);
        self.slots[index as usize].insert(Lane {
            socket,
            token,
            is_ready: true,
            is_hung_up: false,
            is_paused: false,
            is_read_armed: false,
            is_write_armed: false,
            wants_write: false,
            ledger: None,
            is_active: true,
            misses: 0,
        })
    }

    pub fn remove(&mut self, token: Token) -> Option<Lane> {
        self.get(token)?;
        let index = token.index as usize;
        self.generations[index] = (self.generations[index] + 1) & Key::GENERATION_MAX;
        let lane = self.slots[index].take()?;
        if lane.is_active {
            self.active.retain(|&active| active != token.index);
        }
        self.free.push(token.index);
        Some(lane)
    }

    pub fn get(&self, token: Token) -> Option<&Lane> {
        self.slots.get(token.index as usize)?.as_ref().filter(|lane| lane.token == token)
    }

    pub fn get_mut(&mut self, token: Token) -> Option<&mut Lane> {
        self.slots.get_mut(token.index as usize)?.as_mut().filter(|lane| lane.token == token)
    }

    /// The lane that an occurrence concerns, unless it was removed meanwhile.
    pub fn of_key(&mut self, key: Key) -> Option<&mut Lane> {
        self.get_mut(Token { index: key.index, generation: key.generation })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.slots.iter().flatten()
    }

    /// Lanes with something lent to the kernel.
    pub fn lenders(&self) -> Vec<Token> {
        let has_lent = |lane: &&Lane| lane.ledger.as_ref().is_some_and(|ledger| ledger.has_lent());
        self.iter().filter(has_lent).map(|lane| lane.token).collect()
    }

    /// Puts a lane on the list of active ones, with fresh patience.
    pub fn activate(&mut self, token: Token) {
        if let Some(lane) = self.get_mut(token) {
            lane.misses = 0;
            if !lane.is_active {
                lane.is_active = true;
                self.active.push(token.index);
            }
        }
    }

    /// Goes round the active lanes, at most `lanes_max` of them: `report` is called for each that is worth a
    /// receive, `cool` for each that leaves the list and has to be armed.
    pub fn go_round(
        &mut self,
        lanes_max: usize,
        is_spinning: bool,
        mut report: impl FnMut(Token),
        mut cool: impl FnMut(&mut Lane),
    ) {
        let misses_max = if self.active.len() > HOT_LANES_MAX { 1 } else { MISSES_MAX };
        for _ in 0..lanes_max.min(self.active.len()) {
            if self.cursor >= self.active.len() {
                self.cursor = 0;
            }
            let index = self.active[self.cursor] as usize;
            let lane = self.slots[index].as_mut().filter(|lane| !lane.is_paused);
            match lane {
                Some(lane) if lane.is_ready || (is_spinning && lane.misses < misses_max) => {
                    report(lane.token);
                    self.cursor += 1;
                }
                lane => {
                    if let Some(lane) = lane {
                        cool(lane);
                    }
                    self.deactivate_at_cursor();
                }
            }
        }
    }

    fn deactivate_at_cursor(&mut self) {
        let index = self.active.swap_remove(self.cursor);
        if let Some(lane) = &mut self.slots[index as usize] {
            lane.is_active = false;
        }
    }

    /// Whether so many lanes are hot that a vain receive always counts.
    pub fn is_crowded(&self) -> bool {
        self.active.len() > HOT_LANES_MAX
    }

    /// Whether there is just one lane that bytes are expected of without the kernel's word.
    pub fn is_one_active(&self) -> bool {
        self.active.len() == 1
    }

    /// Whether no lane is active: whatever comes, the kernel will say it.
    pub fn are_all_cold(&self) -> bool {
        self.active.is_empty()
    }
}

/// Beyond so many active lanes a vain receive costs more than the kernel's word.
const HOT_LANES_MAX: usize = 64;
/// A lane cools after so many vain receives in turns in which others had work.
const MISSES_MAX: u8 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> OwnedFd {
        std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket").into()
    }

    fn round(lanes: &mut Lanes, is_spinning: bool) -> (Vec<Token>, usize) {
        let (mut reported, mut cooled) = (Vec::new(), 0);
        lanes.go_round(64, is_spinning, |token| reported.push(token), |_| cooled += 1);
        (reported, cooled)
    }

    #[test]
    fn a_ready_lane_is_reported_until_a_receive_found_it_empty() {
        let mut lanes = Lanes::default();
        let token = lanes.insert(socket()).token;
        for _ in 0..3 {
            assert_eq!(round(&mut lanes, false), (vec![token], 0));
        }
        lanes.get_mut(token).expect("present").on_received(false);
        assert_eq!(round(&mut lanes, false), (vec![token], 0));
        lanes.get_mut(token).expect("present").on_received(true);
        assert_eq!(round(&mut lanes, false), (vec![], 1));
        assert!(lanes.are_all_cold());
    }

    #[test]
    fn a_hot_lane_is_tried_while_spinning_and_cools_beside_busy_ones() {
        let mut lanes = Lanes::default();
        let token = lanes.insert(socket()).token;
        for _ in 0..1000 {
            lanes.get_mut(token).expect("present").on_missed(false);
            assert_eq!(round(&mut lanes, true), (vec![token], 0), "alone it costs nothing");
        }
        for _ in 0..MISSES_MAX {
            lanes.get_mut(token).expect("present").on_missed(true);
        }
        assert_eq!(round(&mut lanes, true), (vec![], 1));
    }

    #[test]
    fn a_short_receive_before_a_hang_up_does_not_hide_the_end() {
        let mut lanes = Lanes::default();
        let token = lanes.insert(socket()).token;
        lanes.get_mut(token).expect("present").is_hung_up = true;
        lanes.get_mut(token).expect("present").on_received(true);
        assert_eq!(round(&mut lanes, false), (vec![token], 0));
    }

    #[test]
    fn a_paused_lane_is_neither_reported_nor_armed() {
        let mut lanes = Lanes::default();
        let token = lanes.insert(socket()).token;
        lanes.get_mut(token).expect("present").is_paused = true;
        assert_eq!(round(&mut lanes, true), (vec![], 0));
        lanes.get_mut(token).expect("present").is_paused = false;
        lanes.activate(token);
        assert_eq!(round(&mut lanes, true), (vec![token], 0));
    }

    #[test]
    fn the_token_of_a_removed_lane_names_nothing_even_when_its_slot_lives_again() {
        let mut lanes = Lanes::default();
        let old = lanes.insert(socket()).token;
        assert!(lanes.remove(old).is_some());
        let new = lanes.insert(socket()).token;
        assert_eq!(old.index(), new.index());
        assert!(lanes.get(old).is_none() && lanes.remove(old).is_none());
        assert_eq!(round(&mut lanes, false).0, [new]);
    }

    #[test]
    fn a_turn_reports_a_bounded_number_of_lanes_and_forgets_none() {
        let mut lanes = Lanes::default();
        let mut missing: Vec<Token> = (0..10).map(|_| lanes.insert(socket()).token).collect();
        for _ in 0..4 {
            let mut reported = 0;
            lanes.go_round(3, false, |token| (reported += 1, missing.retain(|&it| it != token)).1, |_| ());
            assert_eq!(reported, 3);
        }
        assert!(missing.is_empty());
    }
}
