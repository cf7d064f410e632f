//! `--hold`: how long requests wait for more to be sent with them.

use isolane_host::Hold;
use isolane_volume::spec::format_size;

use crate::units::{parse_bytes, parse_time};

/// Parses `REQUESTS:SIZE:TIME`.
pub fn parse_hold(text: &str) -> Result<Hold, String> {
    let example = || "write for example 16:64k:50us, that is requests:size:time".to_owned();
    let mut parts = text.split(':');
    let (Some(requests), Some(bytes), Some(time), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(example());
    };
    Ok(Hold {
        requests: requests.parse().map_err(|_| example())?,
        bytes: usize::try_from(parse_bytes(bytes)?).map_err(|_| example())?,
        time: parse_time(time)?,
    })
}

/// What [`parse_hold`] reads.
pub fn show_hold(hold: &Hold) -> String {
    format!("{}:{}:{}us", hold.requests, format_size(hold.bytes as u64), hold.time.as_secs_f64() * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_size_and_time_are_told_apart_by_colons() {
        assert_eq!(parse_hold("16:64k:50us"), Ok(Hold::default()));
        for text in ["16:64k:50us", "1:1000:0.5us"] {
            assert_eq!(show_hold(&parse_hold(text).unwrap()), text);
        }
        for text in ["", "16", "16:64k", "16:64k:50us:1", "x:64k:50us", "16:x:50us", "16:64k:x"] {
            assert!(parse_hold(text).is_err(), "{text}");
        }
    }
}
