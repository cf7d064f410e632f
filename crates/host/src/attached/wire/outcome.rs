//! What became of a command, as an entry of a ring.

use std::sync::Arc;

use isolane_ring::entries::Entry;
use isolane_wire::Status;

use crate::error::{ConnectError, RequestError};

/// What became of a command.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The application's mark.
    pub tag: u64,
    /// The result.
    pub result: Result<(), RequestError>,
}

impl Outcome {
    /// As an entry.
    #[inline]
    pub fn encode(&self) -> Entry {
        match &self.result {
            Ok(()) => [self.tag, SUCCESS, 0, 0, 0, 0, 0, 0],
            Err(error) => encode_error(self.tag, error),
        }
    }

    /// From an entry; `None` if it is none.
    #[inline]
    pub fn decode(entry: &Entry) -> Option<Outcome> {
        let result = match entry[1] {
            SUCCESS => Ok(()),
            _ => Err(decode_error(entry)?),
        };
        Some(Outcome { tag: entry[0], result })
    }
}

#[cold]
fn encode_error(tag: u64, error: &RequestError) -> Entry {
    let of = |code, first: u64, second: u64, third: u64| [tag, code, first, second, third, 0, 0, 0];
    match error {
        RequestError::Status(status) => of(STATUS, status.0.into(), 0, 0),
        RequestError::Damaged => of(DAMAGED, 0, 0, 0),
        RequestError::OutOfRange { lba, blocks, capacity } => of(OUT_OF_RANGE, *lba, *blocks, *capacity),
        RequestError::Unaligned { bytes, block_bytes } => of(UNALIGNED, *bytes, (*block_bytes).into(), 0),
        RequestError::Buffer(_) => of(BUFFER, 0, 0, 0),
        RequestError::Ranges => of(RANGES, 0, 0, 0),
        RequestError::Lane { lane, lanes } => of(LANE, *lane as u64, *lanes as u64, 0),
        RequestError::TooMany(count) => of(TOO_MANY, *count as u64, 0, 0),
        RequestError::Uncertain => of(UNCERTAIN, 0, 0, 0),
        RequestError::HeldBack => of(HELD_BACK, 0, 0, 0),
        RequestError::Lost(_) => of(LOST, 0, 0, 0),
        RequestError::Closed => of(CLOSED, 0, 0, 0),
    }
}

#[cold]
fn decode_error(entry: &Entry) -> Option<RequestError> {
    let [_, code, first, second, third, ..] = *entry;
    Some(match code {
        STATUS => RequestError::Status(Status(first.try_into().ok()?)),
        DAMAGED => RequestError::Damaged,
        OUT_OF_RANGE => RequestError::OutOfRange { lba: first, blocks: second, capacity: third },
        UNALIGNED => RequestError::Unaligned { bytes: first, block_bytes: second.try_into().ok()? },
        BUFFER => RequestError::Buffer("the engine does not find the payload where it is said to be"),
        RANGES => RequestError::Ranges,
        LANE => RequestError::Lane { lane: first as usize, lanes: second as usize },
        TOO_MANY => RequestError::TooMany(first as usize),
        UNCERTAIN => RequestError::Uncertain,
        HELD_BACK => RequestError::HeldBack,
        LOST => RequestError::Lost(Arc::new(ConnectError::Engine(LOST_BY_ENGINE.to_owned()))),
        CLOSED => RequestError::Closed,
        _ => return None,
    })
}

const SUCCESS: u64 = 0;
const STATUS: u64 = 1;
const DAMAGED: u64 = 2;
const OUT_OF_RANGE: u64 = 3;
const UNALIGNED: u64 = 4;
const BUFFER: u64 = 5;
const RANGES: u64 = 6;
const LANE: u64 = 7;
const TOO_MANY: u64 = 8;
const UNCERTAIN: u64 = 9;
const HELD_BACK: u64 = 10;
const LOST: u64 = 11;
const CLOSED: u64 = 12;

const LOST_BY_ENGINE: &str = "its connection to the target broke and was given up; its log says why";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_kind_of_error_comes_through_as_it_was() {
        let errors = [
            RequestError::Status(Status::NAMESPACE_WRITE_PROTECTED.with_dnr(true)),
            RequestError::Damaged,
            RequestError::OutOfRange { lba: 1 << 50, blocks: 7, capacity: 9 },
            RequestError::Unaligned { bytes: 100, block_bytes: 4096 },
            RequestError::Ranges,
            RequestError::Lane { lane: 3, lanes: 2 },
            RequestError::TooMany(4096),
            RequestError::Uncertain,
            RequestError::HeldBack,
            RequestError::Closed,
        ];
        for error in errors {
            let text = error.to_string();
            let outcome = Outcome::decode(&Outcome { tag: 5, result: Err(error) }.encode()).unwrap();
            assert_eq!((outcome.tag, outcome.result.unwrap_err().to_string()), (5, text));
        }
        let lost = RequestError::Lost(Arc::new(ConnectError::NoNamespace));
        let outcome = Outcome::decode(&Outcome { tag: 5, result: Err(lost) }.encode()).unwrap();
        assert!(matches!(outcome.result, Err(RequestError::Lost(_))));
        assert!(Outcome::decode(&Outcome { tag: 9, result: Ok(()) }.encode()).unwrap().result.is_ok());
    }

    proptest! {
        #[test]
        fn garbage_is_none_or_an_outcome(entry: [u64; 8], code in 0u64..20) {
            let mut entry = entry;
            entry[1] = code;
            if let Some(outcome) = Outcome::decode(&entry) {
                prop_assert_eq!(outcome.encode()[..2].to_vec(), entry[..2].to_vec());
            }
        }
    }
}
