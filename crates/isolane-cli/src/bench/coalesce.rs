//! `--coalesce`: limits of request coalescing, as text.

use isolane_host::Coalesce;
use isolane_volume::spec::format_size;

use crate::units::{parse_bytes, parse_time};

/// Parses `REQUESTS:SIZE:TIME`.
pub fn parse_coalesce(text: &str) -> Result<Coalesce, String> {
    let error = || "not REQUESTS:SIZE:TIME; write for example 16:64k:50us".to_owned();
    let [requests, bytes, time] = text.split(':').collect::<Vec<_>>()[..] else { return Err(error()) };
    Ok(Coalesce {
        requests: requests.parse().map_err(|_| error())?,
        bytes: usize::try_from(parse_bytes(bytes)?).map_err(|_| error())?,
        time: parse_time(time)?,
    })
}

/// Formats limits as [`parse_coalesce`] reads them.
pub fn show_coalesce(limits: &Coalesce) -> String {
    let micros = limits.time.as_secs_f64() * 1e6;
    format!("{}:{}:{micros}us", limits.requests, format_size(limits.bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_requests_size_and_time() {
        assert_eq!(parse_coalesce("16:64k:50us"), Ok(Coalesce::default()));
        for text in ["16:64k:50us", "1:1000:0.5us"] {
            assert_eq!(show_coalesce(&parse_coalesce(text).unwrap()), text);
        }
        for text in ["", "16", "16:64k", "16:64k:50us:1", "x:64k:50us", "16:x:50us", "16:64k:x"] {
            assert!(parse_coalesce(text).is_err(), "{text}");
        }
    }
}
