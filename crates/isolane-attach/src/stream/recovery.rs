//! Where a stream is, found from what the kernel counts and what both sides have said: by the engine that goes on
//! with it, and by an application that has no engine any more.
//!
//! Invariant: whoever asks is the only one that works on the socket; the engine before is dead, or done with it.

use std::io;
use std::os::fd::BorrowedFd;

use isolane_ring::adopted::{self, Counters, State};

/// How a stream began, as the engine tells the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// What the kernel had counted as written.
    pub written: u64,
    /// Urgent bytes were inline before.
    pub is_inline: bool,
}

impl Origin {
    /// As it is told.
    pub fn encode(&self) -> Vec<u8> {
        [self.written, self.is_inline.into()].map(u64::to_le_bytes).concat()
    }

    /// As it was told; `None` if it was not.
    pub fn decode(bytes: &[u8]) -> Option<Origin> {
        let (written, is_inline) = bytes.split_first_chunk()?;
        let is_inline = match u64::from_le_bytes(is_inline.try_into().ok()?) {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Origin { written: u64::from_le_bytes(*written), is_inline })
    }
}

/// How many bytes of the ring the kernel was given, of a stream of which the application has sent `native` itself.
/// More than there are in the ring, if it has sent some that it has not counted yet: then the ring is empty.
pub fn sent(now: &Counters, written: u64, native: u64, tx_shut: Option<u64>) -> u64 {
    let given = now.written.wrapping_sub(written).wrapping_sub(native);
    match now.state {
        // Our FIN was counted, too; it went out behind all that was to be sent.
        State::Shut => tx_shut.unwrap_or(given.wrapping_sub(1)),
        _ => given,
    }
}

/// How many bytes are out of the kernel, of a stream of which `produced` were published. `under_way`: how many were
/// out for certain, and how many were about to be. `None` if that cannot be.
///
/// # Errors
/// The kernel's.
pub fn discarded(socket: BorrowedFd<'_>, produced: u64, under_way: (u64, u64)) -> io::Result<Option<u64>> {
    let (from, to) = under_way;
    if from == to {
        return Ok(Some(from));
    }
    // All that was peeked before was published, so that the offset is from there. A socket that was never touched,
    // or is handed back, has no offset; then nothing was under way.
    let ahead = u64::try_from(adopted::peek_offset(socket)?).ok();
    let discarded = ahead.and_then(|ahead| produced.checked_sub(ahead));
    Ok(discarded.filter(|discarded| (from..=to).contains(discarded)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_told_in_two_words() {
        for is_inline in [false, true] {
            let origin = Origin { written: u64::MAX - 1, is_inline };
            assert_eq!(Origin::decode(&origin.encode()), Some(origin));
        }
        let bytes = Origin { written: 7, is_inline: true }.encode();
        assert!((0..bytes.len()).all(|len| Origin::decode(&bytes[..len]).is_none()));
        assert_eq!(Origin::decode(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(Origin::decode(&[[2; 8], [2; 8]].concat()), None);
    }
}
