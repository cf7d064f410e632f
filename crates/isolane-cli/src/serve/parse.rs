//! Values of options of `serve`.

use std::num::NonZeroU32;

use isolane_target::Listen;

use crate::units::parse_bytes;

/// Minimum size, if enabled.
pub type Threshold = Option<usize>;

/// Number of sends for each one that is sampled, if any is.
pub type Acks = Option<NonZeroU32>;

/// The listeners of one argument.
#[derive(Clone, Debug)]
pub struct Listeners(pub Vec<Listen>);

/// Parses addresses with socket options.
pub fn parse_listen(text: &str) -> Result<Listeners, String> {
    Listen::parse_all(text).map(Listeners)
}

/// Parses a size, or off.
pub fn parse_threshold(text: &str) -> Result<Threshold, String> {
    match text {
        "off" => Ok(None),
        text => Ok(Some(parse_bytes(text)? as usize)),
    }
}

/// Parses `1/N`, or off.
pub fn parse_acks(text: &str) -> Result<Acks, String> {
    let interval = || text.strip_prefix("1/")?.parse().ok();
    match text {
        "off" => Ok(None),
        _ => interval().map(Some).ok_or_else(|| "write 1/N, as 1/1000, or off".into()),
    }
}

/// Parses a size in memory.
pub fn parse_memory(text: &str) -> Result<usize, String> {
    usize::try_from(parse_bytes(text)?).map_err(|error| error.to_string())
}

/// Parses the memory of a reactor.
pub fn parse_pool(text: &str) -> Result<usize, String> {
    let bytes = parse_memory(text)?;
    if bytes < MIN_POOL_BYTES {
        Err("commands of 1 MiB need more; use at least 4M".into())
    } else {
        Ok(bytes)
    }
}

/// Minimum of [`TargetConfig::max_pool_pages`], in bytes.
const MIN_POOL_BYTES: usize = 4 << 20;
