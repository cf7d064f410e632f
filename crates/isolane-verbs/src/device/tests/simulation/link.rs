//! A life of two connected queue pairs: requests of both programs, their completions, and the checks at the end.

use super::end::{End, receive_address};
use super::model::{Expected, Model};
use super::*;
use crate::types::{CompletedOperation, Completion, Queue};

/// Two queue pairs, and the expected memory of both ends.
pub(super) struct Link {
    pub(super) ends: [End; 2],
    pub(super) models: [Model; 2],
    pub(super) retries_forever: bool,
    /// Length of the result of each request that has one.
    results: [Vec<Option<u32>>; 2],
    /// Whether a READ of each end can read bytes that its next WRITE changes, unless that is fenced.
    must_fence: [bool; 2],
}

impl Link {
    pub(super) fn new(ends: [End; 2], retries_forever: bool) -> Link {
        let models = [0, 1].map(|index| Model::new(ends[index].area()));
        Link { ends, models, retries_forever, results: Default::default(), must_fence: [false; 2] }
    }

    /// Whether both queue pairs exist.
    pub(super) fn is_alive(&self) -> bool {
        self.ends.iter().all(|end| !end.is_dead)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.ends.iter().any(|end| !end.is_dead && end.has_failed())
    }

    /// Posts the next request of an end, and executes it in the model.
    pub(super) fn post(&mut self, index: usize, rng: &mut Rng) {
        let id = self.ends[index].posted;
        if id == REQUESTS || self.ends[index].is_dead {
            return;
        }
        let (key, base) = (self.ends[1 - index].process.memory.key(), self.ends[1 - index].base);
        let [near, far] = match &mut self.models {
            [first, second] if index == 0 => [first, second],
            [first, second] => [second, first],
        };
        let request = Some((index, id));
        let received_before = far.received.len() as u64;
        let (place, target) = (rng.u64(0..12 * 1024), TARGET + rng.u64(0..12 * 1024));
        let result = RESULTS + RESULT_BYTES * id;
        let immediate = rng.bool().then_some(id as u32);
        let mut reads_target = false;
        let expected = |length: u32| Expected { length: length.into(), immediate, request: id };
        let (operation, address, length, result_bytes) = match rng.u8(0..6) {
            0 => {
                let length = rng.u32(0..=RECEIVE_BYTES);
                far.put(request, receive_address(received_before), near.copy(place, length));
                far.received.push(expected(length));
                (SendOperation::Send { immediate }, place, length, None)
            }
            1 | 2 => {
                let length = rng.u32(0..3000);
                far.put(request, target, near.copy(place, length));
                far.received.extend(immediate.map(|_| expected(length)));
                (SendOperation::Write { address: base + target, rkey: key, immediate }, place, length, None)
            }
            3 => {
                let length = rng.u32(0..RESULT_BYTES as u32);
                let from = if rng.bool() { place } else { target };
                reads_target = from == target;
                near.put(request, result, far.copy(from, length));
                (SendOperation::Read { address: base + from, rkey: key }, result, length, Some(length))
            }
            kind => {
                let word = WORDS + 8 * rng.u64(0..4);
                let (found, value, address) = (far.word(word), rng.u64(1..4), base + word);
                let (operation, new) = if kind == 4 {
                    (SendOperation::FetchAdd { address, rkey: key, add: value }, found + value)
                } else {
                    let compare = if rng.bool() { found } else { found + 1 };
                    let new = if compare == found { value } else { found };
                    (SendOperation::CompareSwap { address, rkey: key, compare, swap: value }, new)
                };
                far.put(request, word, new.to_le_bytes().to_vec());
                near.put(request, result, found.to_le_bytes().to_vec());
                (operation, result, 8, Some(8))
            }
        };
        let is_inline = result_bytes.is_none() && length <= 200 && rng.bool();
        let consumes = far.received.len() as u64 > received_before;
        let is_write = matches!(operation, SendOperation::Write { .. });
        let fenced = (is_write && self.must_fence[index]) || rng.u8(0..8) == 0;
        self.must_fence[index] = reads_target || (self.must_fence[index] && !fenced);
        let signaled = rng.u8(0..8) > 0;
        let end = &mut self.ends[index];
        let data = if is_inline {
            LocalData::Inline(end.bytes(address, length))
        } else {
            LocalData::Sges([end.sge(address, length)].into_iter().collect())
        };
        let request = SendRequest { id, operation, data, signaled, solicited: false, fenced };
        end.consumes.push(consumes);
        end.signaled.push(signaled);
        self.results[index].push(result_bytes);
        end.context.connection.post_send(request).unwrap();
        end.posted += 1;
    }

    /// The program takes its completions. It checks the bytes of each, and then reuses the memory.
    pub(super) fn take_completions(&mut self, index: usize, context: &str) {
        self.ends[index].settle();
        while let Some((queue, done)) = self.ends[index].next_completion() {
            match queue {
                Queue::Send => self.on_sent(index, &done, context),
                Queue::Receive => self.on_received(index, &done, context),
            }
        }
    }

    fn on_sent(&mut self, index: usize, done: &Completion, context: &str) {
        self.ends[index].sent.push((done.id, done.status));
        let length = self.results[index].get(done.id as usize).copied().flatten();
        let Some(length) = length.filter(|_| done.status == Status::Success) else { return };
        assert_eq!(done.length, u64::from(length), "{context}: request {}", done.id);
        self.reuse(index, RESULTS + RESULT_BYTES * done.id, length, context);
    }

    fn on_received(&mut self, index: usize, done: &Completion, context: &str) {
        let end = &mut self.ends[index];
        let number = end.received.len();
        end.received.push((done.id, done.status));
        if done.status != Status::Success {
            return;
        }
        let expected = self.models[index].received.get(number);
        let Expected { length, immediate, request } =
            expected.unwrap_or_else(|| panic!("{context}: receive {number} is too many"));
        assert_eq!((done.length, done.immediate), (*length, *immediate), "{context}: receive {number}");
        let (length, request) = (*length as u32, *request);
        if number.is_multiple_of(4) {
            // All requests up to this one are executed.
            let mut executed = [self.ends[0].done(), self.ends[1].done()];
            executed[1 - index] = executed[1 - index].max(request + 1);
            let wrong = self.models[index].first_wrong(&self.ends[index].area(), executed);
            assert_eq!(wrong, None, "{context}: a byte is wrong at receive {number}");
        }
        if done.operation == CompletedOperation::Receive {
            self.reuse(index, receive_address(number as u64), length, context);
        }
    }

    /// Checks bytes that a completion names, and writes others, which nothing may overwrite.
    fn reuse(&mut self, index: usize, address: u64, length: u32, context: &str) {
        let found = self.ends[index].bytes(address, length);
        assert!(found == self.models[index].copy(address, length), "{context}: bytes at {address} are wrong");
        let others: Vec<u8> = found.iter().map(|byte| !byte).collect();
        self.ends[index].write(address, &others);
        self.models[index].put(None, address, others);
    }

    /// Checks an end that has nothing left to do.
    pub(super) fn check(&self, index: usize, context: &str) {
        let (end, peer, model) = (&self.ends[index], &self.ends[1 - index], &self.models[index]);
        let is_unharmed = self.is_alive() && !self.has_failed();
        let failed = end.sent.iter().find(|(_, status)| *status != Status::Success).copied();
        let first_failed = failed.map_or(u64::MAX, |(id, _)| id);
        // A failed request has a completion in any case.
        let complete = (0..end.posted).filter(|id| *id >= first_failed || end.signaled[*id as usize]);
        let complete: Vec<u64> = complete.collect();
        let ids: Vec<u64> = end.sent.iter().map(|(id, _)| *id).collect();
        if end.is_dead || end.has_overrun {
            assert!(complete.starts_with(&ids), "{context}: {:?}", end.sent);
        } else {
            assert_eq!(ids, complete, "{context}: {:?}", end.sent);
            // The peer does not acknowledge each request without a completion.
            let unsignaled = end.signaled.iter().rev().take_while(|signaled| !**signaled).count();
            let outstanding = end.context.connection.outstanding_sends();
            assert!(
                outstanding <= if is_unharmed { unsignaled } else { 0 },
                "{context}: a request is silent"
            );
        }
        let after = end.sent.iter().skip_while(|(id, _)| *id <= first_failed);
        let is_flushed = |(_, status): &(u64, Status)| *status == Status::Flushed;
        assert!(failed.is_none() || after.clone().all(is_flushed), "{context}: {:?}", end.sent);
        if let Some((id, status)) = failed {
            let is_expected = match status {
                Status::Flushed => end.has_overrun || id >= end.posted_before,
                Status::RetryExceeded => !is_unharmed,
                Status::RnrRetryExceeded => !self.retries_forever,
                _ => false,
            };
            assert!(is_expected, "{context}: {status:?}");
        }
        let received = end.received.iter().take_while(|(_, status)| *status == Status::Success).count();
        assert!(end.received.iter().map(|(id, _)| *id).eq(0..end.received.len() as u64), "{context}");
        assert!(end.received[received..].iter().all(|(_, status)| *status == Status::Flushed), "{context}");
        let consumed =
            |(id, status): &(u64, Status)| *status == Status::Success && peer.consumes[*id as usize];
        let consumed = peer.sent.iter().filter(|sent| consumed(sent)).count();
        let may_lack = end.is_dead || end.has_overrun || peer.has_overrun;
        assert!(may_lack || consumed <= received, "{context}: a receive is missing");
        assert!(!is_unharmed || received == model.received.len(), "{context}: a receive is missing");
        let done = [0, 1].map(|end| if is_unharmed { self.ends[end].posted } else { self.ends[end].done() });
        assert_eq!(model.first_wrong(&end.area(), done), None, "{context}: a byte of the memory is wrong");
        assert!(
            end.frozen.as_ref().is_none_or(|frozen| *frozen == end.area()),
            "{context}: a byte was placed after the failure"
        );
    }
}
