//! Random programs against a model that executes requests one after the other.

use super::*;

/// One step of the near end's program; `Receive` is of the far end.
#[derive(Clone, Debug)]
enum Step {
    Send { from: u64, len: u32 },
    Write { from: u64, to: u64, len: u32, immediate: bool },
    Read { from: u64, to: u64, len: u32 },
    Add { word: u64, add: u64 },
    Swap { word: u64, compare: u64, swap: u64 },
    Receive,
    Run { chunk: usize },
}

// Places in both memories. A program never reads what another of its requests can change.
const SOURCE: u64 = 0;
const TARGET: u64 = 16 * 1024;
const WORDS: u64 = 32 * 1024;
const RECEIVES: u64 = 33 * 1024;
const RECEIVE_BYTES: u64 = 480;
const MAX_STEPS: usize = 60;

fn step() -> impl Strategy<Value = Step> {
    let place = || 0_u64..12 * 1024;
    let len = 0_u32..4000;
    let word = 0_u64..4;
    prop_oneof![
        (place(), 0..RECEIVE_BYTES as u32).prop_map(|(from, len)| Step::Send { from, len }),
        (place(), place(), len.clone(), any::<bool>()).prop_map(|(from, to, len, immediate)| Step::Write {
            from,
            to,
            len,
            immediate
        }),
        (place(), place(), len).prop_map(|(from, to, len)| Step::Read { from, to, len }),
        (word.clone(), 0_u64..3).prop_map(|(word, add)| Step::Add { word, add }),
        (word, 0_u64..4, 0_u64..4).prop_map(|(word, compare, swap)| Step::Swap { word, compare, swap }),
        Just(Step::Receive),
        (1_usize..5000).prop_map(|chunk| Step::Run { chunk }),
    ]
}

/// Both memories and the completions that the model expects.
struct Model {
    near: Vec<u8>,
    far: Vec<u8>,
    sent: Vec<u64>,
    /// Length and immediate data of each receive, in order.
    received: Vec<(u64, Option<u32>)>,
}

impl Model {
    /// Executes a step and returns the request for it.
    fn apply(&mut self, id: u64, step: &Step, key: u32) -> Option<(SendOperation, u64, u32)> {
        let copy =
            |from: u64, len: u32, bytes: &[u8]| bytes[from as usize..from as usize + len as usize].to_vec();
        let place = |bytes: &mut [u8], at: u64, data: &[u8]| {
            bytes[at as usize..at as usize + data.len()].copy_from_slice(data);
        };
        let word = |far: &[u8], at: u64| u64::from_le_bytes(copy(at, 8, far).try_into().unwrap());
        let request = match *step {
            Step::Send { from, len } => {
                let at = RECEIVES + RECEIVE_BYTES * self.received.len() as u64;
                place(&mut self.far, at, &copy(SOURCE + from, len, &self.near));
                self.received.push((len.into(), None));
                (SEND, SOURCE + from, len)
            }
            Step::Write { from, to, len, immediate } => {
                place(&mut self.far, TARGET + to, &copy(SOURCE + from, len, &self.near));
                let immediate = immediate.then_some(id as u32);
                self.received.extend(immediate.map(|immediate| (len.into(), Some(immediate))));
                (SendOperation::Write { address: TARGET + to, rkey: key, immediate }, SOURCE + from, len)
            }
            Step::Read { from, to, len } => {
                place(&mut self.near, TARGET + to, &copy(SOURCE + from, len, &self.far));
                (SendOperation::Read { address: SOURCE + from, rkey: key }, TARGET + to, len)
            }
            Step::Add { word: index, add } => {
                let at = WORDS + 8 * index;
                let found = word(&self.far, at);
                place(&mut self.far, at, &found.wrapping_add(add).to_le_bytes());
                place(&mut self.near, at, &found.to_le_bytes());
                (SendOperation::FetchAdd { address: at, rkey: key, add }, at, 8)
            }
            Step::Swap { word: index, compare, swap } => {
                let at = WORDS + 8 * index;
                let found = word(&self.far, at);
                let new = if found == compare { swap } else { found };
                place(&mut self.far, at, &new.to_le_bytes());
                place(&mut self.near, at, &found.to_le_bytes());
                (SendOperation::CompareSwap { address: at, rkey: key, compare, swap }, at, 8)
            }
            Step::Receive | Step::Run { .. } => return None,
        };
        self.sent.push(id);
        Some(request)
    }
}

fn post_receive(pair: &mut Pair, number: u64) {
    let place = pair.far.sge(RECEIVES + RECEIVE_BYTES * number, RECEIVE_BYTES as u32);
    pair.far.receive(number, &[place]);
}

proptest! {
    #[test]
    fn executes_like_the_model(
        steps in prop::collection::vec(step(), 1..MAX_STEPS),
        segment_bytes in 1_u32..5000,
        last_chunk in 1_usize..5000,
        shares_receives in any::<bool>(),
    ) {
        check(&steps, segment_bytes, last_chunk, shares_receives)?;
    }
}

#[test]
fn executes_programs_that_have_failed_like_the_model() {
    // From the regressions, whose seeds give other programs since the steps have changed.
    let steps = [Step::Send { from: 0, len: 428 }, Step::Receive, Step::Read { from: 0, to: 0, len: 1 }];
    for (last_chunk, shares_receives) in [(1, false), (1, true), (4096, false), (4096, true)] {
        check(&steps, 1, last_chunk, shares_receives).unwrap();
    }
}

fn check(
    steps: &[Step],
    segment_bytes: u32,
    last_chunk: usize,
    shares_receives: bool,
) -> Result<(), TestCaseError> {
    let limits = Limits::default();
    let mut pair = if shares_receives {
        Pair::with_shared_receives(limits, segment_bytes, RNR_FOREVER)
    } else {
        Pair::with(ALL, limits, segment_bytes)
    };
    let source: Vec<u8> = (0..TARGET).map(|at| (at * 7 % 251) as u8 | 1).collect();
    pair.near.fill(0, &source);
    pair.far.fill(0, &source[1..]);
    let (near, far) = (pair.near.bytes(0, MEMORY_BYTES), pair.far.bytes(0, MEMORY_BYTES));
    let mut model = Model { near, far, sent: Vec::new(), received: Vec::new() };
    let (key, mut receives) = (pair.far.memory.key(), 0);
    for (id, step) in steps.iter().enumerate() {
        match step {
            Step::Receive => {
                post_receive(&mut pair, receives);
                receives += 1;
            }
            Step::Run { chunk } => pair.run_in(*chunk),
            _ => {}
        }
        if let Some((operation, at, len)) = model.apply(id as u64, step, key) {
            pair.near.send(id as u64, operation, &[pair.near.sge(at, len)]).unwrap();
        }
    }
    pair.run_in(last_chunk);
    for number in receives..MAX_STEPS as u64 {
        post_receive(&mut pair, number);
    }
    pair.run_in(last_chunk);
    let sent = pair.near.completions();
    let expected: Vec<_> = model.sent.iter().map(|id| (Queue::Send, *id, Status::Success)).collect();
    prop_assert_eq!(sent.iter().map(|done| (done.0, done.1, done.2)).collect::<Vec<_>>(), expected);
    let next = || pair.far.pair.poll_completion();
    let received: Vec<_> =
        std::iter::from_fn(next).map(|(_, done)| (done.id, done.length, done.immediate)).collect();
    let expected: Vec<_> =
        (0..).zip(&model.received).map(|(id, (length, immediate))| (id, *length, *immediate)).collect();
    prop_assert_eq!(received, expected);
    prop_assert!(pair.far.bytes(0, MEMORY_BYTES) == model.far, "the far memory differs");
    prop_assert!(pair.near.bytes(0, MEMORY_BYTES) == model.near, "the near memory differs");
    Ok(())
}
