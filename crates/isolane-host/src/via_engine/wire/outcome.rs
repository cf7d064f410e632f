//! Outcome of a command, as an entry of a ring.

use std::sync::Arc;

use isolane_shm::entries::Entry;
use isolane_wire::Status;
use uuid::Uuid;

use crate::difference::Difference;
use crate::error::{ConnectError, LossCause, RequestError};
use crate::unflushed::Era;

/// Outcome of a command.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Tag of the submission.
    pub tag: u64,
    /// The result.
    pub result: Result<(), RequestError>,
    /// The era of the target that acknowledged a successful command.
    pub era: Era,
}

impl Outcome {
    /// Encodes an entry.
    #[inline]
    pub fn encode(&self) -> Entry {
        match &self.result {
            Ok(()) => [self.tag, SUCCESS, self.era.bits(), 0, 0, 0, 0, 0],
            Err(error) => encode_error(self.tag, error),
        }
    }

    /// Decodes an entry. Returns `None` if it is malformed.
    #[inline]
    pub fn decode(entry: &Entry) -> Option<Outcome> {
        let (result, era) = match entry[1] {
            SUCCESS => (Ok(()), Era::from_bits(entry[2])?),
            _ => (Err(decode_error(entry)?), Era::default()),
        };
        Some(Outcome { tag: entry[0], result, era })
    }
}

#[cold]
fn encode_error(tag: u64, error: &RequestError) -> Entry {
    let of = |code, first: u64, second: u64, third: u64| [tag, code, first, second, third, 0, 0, 0];
    match error {
        RequestError::Status(status) => of(STATUS, status.0.into(), 0, 0),
        RequestError::DataDigest => of(DAMAGED, 0, 0, 0),
        RequestError::OutOfRange { lba, blocks, capacity } => of(OUT_OF_RANGE, *lba, *blocks, *capacity),
        RequestError::Unaligned { bytes, block_bytes } => of(UNALIGNED, *bytes, (*block_bytes).into(), 0),
        RequestError::Buffer(_) => of(BUFFER, 0, 0, 0),
        RequestError::InvalidRanges => of(RANGES, 0, 0, 0),
        RequestError::Lane { lane, lanes } => of(LANE, *lane as u64, *lanes as u64, 0),
        RequestError::TooMany(count) => of(TOO_MANY, *count as u64, 0, 0),
        RequestError::FateUnknown => of(UNCERTAIN, 0, 0, 0),
        RequestError::Fenced => of(HELD_BACK, 0, 0, 0),
        RequestError::WritesLost { writes, cause } => {
            let cause = match cause {
                LossCause::Cache => 0,
                LossCause::Content => 1,
                LossCause::Unknown => 2,
            };
            of(WRITES_LOST, *writes, cause, 0)
        }
        RequestError::Lost(error) => match **error {
            ConnectError::VolumeChanged(difference) => encode_difference(tag, difference),
            _ => of(LOST, 0, 0, 0),
        },
        RequestError::Closed => of(CLOSED, 0, 0, 0),
    }
}

#[cold]
fn decode_error(entry: &Entry) -> Option<RequestError> {
    let [_, code, first, second, third, ..] = *entry;
    Some(match code {
        STATUS => RequestError::Status(Status(first.try_into().ok()?)),
        DAMAGED => RequestError::DataDigest,
        OUT_OF_RANGE => RequestError::OutOfRange { lba: first, blocks: second, capacity: third },
        UNALIGNED => RequestError::Unaligned { bytes: first, block_bytes: second.try_into().ok()? },
        BUFFER => RequestError::Buffer("the engine rejects the offset of the payload"),
        RANGES => RequestError::InvalidRanges,
        LANE => RequestError::Lane { lane: first as usize, lanes: second as usize },
        TOO_MANY => RequestError::TooMany(first as usize),
        UNCERTAIN => RequestError::FateUnknown,
        HELD_BACK => RequestError::Fenced,
        LOST => RequestError::Lost(Arc::new(ConnectError::Engine(LOST_BY_ENGINE.to_owned()))),
        CLOSED => RequestError::Closed,
        WRITES_LOST => {
            let cause = match second {
                0 => LossCause::Cache,
                1 => LossCause::Content,
                2 => LossCause::Unknown,
                _ => return None,
            };
            RequestError::WritesLost { writes: first, cause }
        }
        VOLUME_CHANGED => {
            RequestError::Lost(Arc::new(ConnectError::VolumeChanged(decode_difference(entry)?)))
        }
        _ => return None,
    })
}

/// Kind, previous value, and current value; a missing identifier is zeroes, as in Identify.
fn encode_difference(tag: u64, difference: Difference) -> Entry {
    let of = |kind, before: u128, now: u128| {
        let [before, now] = [before, now].map(|value| [value as u64, (value >> 64) as u64]);
        [tag, VOLUME_CHANGED, kind, before[0], before[1], now[0], now[1], 0]
    };
    let uuid = |id: Option<Uuid>| id.unwrap_or_default().as_u128();
    let nguid = |id: Option<[u8; 16]>| u128::from_be_bytes(id.unwrap_or_default());
    let eui64 = |id: Option<[u8; 8]>| u64::from_be_bytes(id.unwrap_or_default()).into();
    match difference {
        Difference::Uuid(before, now) => of(0, uuid(before), uuid(now)),
        Difference::Nguid(before, now) => of(1, nguid(before), nguid(now)),
        Difference::Eui64(before, now) => of(2, eui64(before), eui64(now)),
        Difference::BlockBytes(before, now) => of(3, before.into(), now.into()),
        Difference::MetadataBytes(before, now) => of(4, before.into(), now.into()),
        Difference::Blocks(before, now) => of(5, before.into(), now.into()),
        Difference::CommandBlocks(before, now) => of(6, before.into(), now.into()),
        Difference::Subsystem => of(7, 0, 0),
    }
}

fn decode_difference(entry: &Entry) -> Option<Difference> {
    let [_, _, kind, ..] = *entry;
    let [before, now] = [3, 5].map(|at| u128::from(entry[at + 1]) << 64 | u128::from(entry[at]));
    let uuid = |id: u128| Some(Uuid::from_u128(id)).filter(|id| !id.is_nil());
    let nguid = |id: u128| Some(id.to_be_bytes()).filter(|_| id != 0);
    let eui64 = |id: u128| Some((id as u64).to_be_bytes()).filter(|_| id != 0);
    Some(match kind {
        0 => Difference::Uuid(uuid(before), uuid(now)),
        1 => Difference::Nguid(nguid(before), nguid(now)),
        2 => Difference::Eui64(eui64(before), eui64(now)),
        3 => Difference::BlockBytes(before.try_into().ok()?, now.try_into().ok()?),
        4 => Difference::MetadataBytes(before.try_into().ok()?, now.try_into().ok()?),
        5 => Difference::Blocks(before.try_into().ok()?, now.try_into().ok()?),
        6 => Difference::CommandBlocks(before.try_into().ok()?, now.try_into().ok()?),
        7 => Difference::Subsystem,
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
const VOLUME_CHANGED: u64 = 13;
const WRITES_LOST: u64 = 14;

const LOST_BY_ENGINE: &str = "the engine has lost its connection to the target; see its log";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn failed(error: RequestError) -> Outcome {
        Outcome { tag: 5, result: Err(error), era: Era::default() }
    }

    #[test]
    fn round_trips_every_error() {
        let errors = [
            RequestError::Status(Status::NAMESPACE_WRITE_PROTECTED.with_dnr(true)),
            RequestError::DataDigest,
            RequestError::OutOfRange { lba: 1 << 50, blocks: 7, capacity: 9 },
            RequestError::Unaligned { bytes: 100, block_bytes: 4096 },
            RequestError::InvalidRanges,
            RequestError::Lane { lane: 3, lanes: 2 },
            RequestError::TooMany(4096),
            RequestError::FateUnknown,
            RequestError::Fenced,
            RequestError::WritesLost { writes: 1 << 40, cause: LossCause::Cache },
            RequestError::WritesLost { writes: 2, cause: LossCause::Content },
            RequestError::WritesLost { writes: 3, cause: LossCause::Unknown },
            RequestError::Closed,
        ];
        for error in errors {
            let text = error.to_string();
            let outcome = Outcome::decode(&failed(error).encode()).unwrap();
            assert_eq!((outcome.tag, outcome.result.unwrap_err().to_string()), (5, text));
        }
        let id = |fill| Some([fill; 16]);
        let differences = [
            Difference::Uuid(id(1).map(Uuid::from_bytes), None),
            Difference::Nguid(id(0xf2), id(3)),
            Difference::Eui64(None, Some([1, 2, 3, 4, 5, 6, 7, 0xf8])),
            Difference::BlockBytes(512, 4096),
            Difference::MetadataBytes(0, 8),
            Difference::Blocks(u64::MAX, 7),
            Difference::CommandBlocks(256, 8),
            Difference::Subsystem,
        ];
        for difference in differences {
            let lost = RequestError::Lost(Arc::new(ConnectError::VolumeChanged(difference)));
            let text = lost.to_string();
            let outcome = Outcome::decode(&failed(lost).encode()).unwrap();
            assert_eq!(outcome.result.unwrap_err().to_string(), text);
        }
        let lost = RequestError::Lost(Arc::new(ConnectError::NoNamespace));
        let outcome = Outcome::decode(&failed(lost).encode()).unwrap();
        assert!(matches!(outcome.result, Err(RequestError::Lost(_))));
        let era = Era::from_bits(0x1235).unwrap();
        let outcome = Outcome::decode(&Outcome { tag: 9, result: Ok(()), era }.encode()).unwrap();
        assert!(outcome.result.is_ok() && outcome.era == era);
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
