//! `--background`: a load that runs during the measurement.

use std::fmt;
use std::str::FromStr;

use isolane_volume::spec::format_size;

use super::access_pattern::{OPERATION_KINDS, Rw};
use crate::choice::{name_of, value_of};
use crate::units::parse_bytes;

/// Operations that are kept in flight on the same lanes as the measured ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackgroundLoad {
    /// Order and direction.
    pub rw: Rw,
    /// Size of one operation.
    pub bytes: u64,
    /// Operations in flight on each lane.
    pub depth: u16,
}

impl FromStr for BackgroundLoad {
    type Err = String;

    fn from_str(text: &str) -> Result<BackgroundLoad, String> {
        let [kind, bytes, depth] = text.split(':').collect::<Vec<_>>()[..] else {
            return Err("not KIND:SIZE:DEPTH; write for example write:1m:32".into());
        };
        let rw = value_of(&OPERATION_KINDS, kind).filter(|rw| *rw != Rw::Randrw);
        let unknown = || format!("unknown kind `{kind}`; write read, write, randread, or randwrite");
        let depth = depth.parse().ok().filter(|depth| *depth > 0);
        Ok(BackgroundLoad {
            rw: rw.ok_or_else(unknown)?,
            bytes: parse_bytes(bytes)?,
            depth: depth.ok_or("invalid depth; write a number from 1 to 65535")?,
        })
    }
}

impl fmt::Display for BackgroundLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", name_of(&OPERATION_KINDS, &self.rw), format_size(self.bytes), self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_kind_size_and_depth() {
        let load = BackgroundLoad { rw: Rw::Write, bytes: 1 << 20, depth: 32 };
        assert_eq!("write:1m:32".parse(), Ok(load));
    }

    #[test]
    fn round_trips_text() {
        for text in ["read:512:1", "write:1M:32", "randread:4k:2", "randwrite:12k:3"] {
            assert_eq!(text.parse::<BackgroundLoad>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn rejects_anything_else() {
        for text in ["write", "write:1m", "write:1m:0", "write:1m:1:1", "erase:1m:1", "write:x:1"] {
            assert!(text.parse::<BackgroundLoad>().is_err(), "{text}");
        }
    }
}
