//! Outcome of a command, as an entry of a ring.

use std::sync::Arc;

use isolane_shm::entries::Entry;

use crate::difference::Difference;
use crate::error::{ConnectError, RequestError};
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
            FAILURE => (Err(decode_error(entry)?), Era::default()),
            _ => return None,
        };
        Some(Outcome { tag: entry[0], result, era })
    }
}

/// Encodes an error and, of the reasons for a loss, a changed volume.
#[cold]
fn encode_error(tag: u64, error: &RequestError) -> Entry {
    let changed = match error {
        RequestError::Lost(reason) => match **reason {
            ConnectError::VolumeChanged(difference) => Some(difference),
            _ => None,
        },
        _ => None,
    };
    let mut bytes = [0; ERROR_BYTES];
    postcard::to_slice(&(changed, error), &mut bytes).expect("an error fits an entry");
    let mut entry = [tag, FAILURE, 0, 0, 0, 0, 0, 0];
    for (word, bytes) in entry[2..].iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    entry
}

#[cold]
fn decode_error(entry: &Entry) -> Option<RequestError> {
    let bytes: Vec<u8> = entry[2..].iter().flat_map(|word| word.to_le_bytes()).collect();
    let (changed, error) = postcard::from_bytes::<(Option<Difference>, _)>(&bytes).ok()?;
    let lost = |difference| RequestError::Lost(Arc::new(ConnectError::VolumeChanged(difference)));
    Some(changed.map_or(error, lost))
}

const SUCCESS: u64 = 0;
const FAILURE: u64 = 1;
/// Space for an encoded error: all but two words of an entry.
const ERROR_BYTES: usize = size_of::<Entry>() - 16;

#[cfg(test)]
mod tests {
    use isolane_wire::Status;
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::error::LossCause;

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
