//! `--beside`: what else goes on while a run is measured.

use std::fmt;
use std::str::FromStr;

use isolane_volume::spec::format_size;

use super::plan::Kind;
use crate::units::parse_bytes;

/// Operations that are kept in flight beside the measured ones, on the same lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beside {
    /// Order and direction.
    pub kind: Kind,
    /// Bytes of one operation.
    pub bytes: u64,
    /// Operations in flight on each lane.
    pub depth: u16,
}

impl FromStr for Beside {
    type Err = String;

    fn from_str(text: &str) -> Result<Beside, String> {
        let mut parts = text.split(':');
        let (Some(rw), Some(bytes), Some(depth), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err("write for example write:1m:32, that is kind:size:depth".into());
        };
        let (random, reads_percent) = match rw {
            "read" => (false, 100),
            "write" => (false, 0),
            "randread" => (true, 100),
            "randwrite" => (true, 0),
            _ => return Err(format!("`{rw}` is none of read, write, randread, randwrite")),
        };
        let depth = depth.parse().ok().filter(|depth| *depth > 0);
        Ok(Beside {
            kind: Kind { random, reads_percent },
            bytes: parse_bytes(bytes)?,
            depth: depth.ok_or("the depth is a number from 1 to 65535")?,
        })
    }
}

impl fmt::Display for Beside {
    /// What [`Beside::from_str`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let random = if self.kind.random { "rand" } else { "" };
        let direction = if self.kind.reads_percent > 0 { "read" } else { "write" };
        write!(f, "{random}{direction}:{}:{}", format_size(self.bytes), self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_size_and_depth_are_told_apart_by_colons() {
        let kind = Kind { random: false, reads_percent: 0 };
        assert_eq!("write:1m:32".parse(), Ok(Beside { kind, bytes: 1 << 20, depth: 32 }));
    }

    #[test]
    fn printing_and_parsing_are_inverse() {
        for text in ["read:512:1", "write:1M:32", "randread:4k:2", "randwrite:12k:3"] {
            assert_eq!(text.parse::<Beside>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn anything_else_is_refused_with_an_example() {
        for text in ["write", "write:1m", "write:1m:0", "write:1m:1:1", "erase:1m:1", "write:x:1"] {
            assert!(text.parse::<Beside>().is_err(), "{text}");
        }
    }
}
