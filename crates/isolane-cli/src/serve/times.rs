//! Times after which a target does not wait for its volumes.

use std::time::Duration;

use crate::failure::Failure;
use crate::units::parse_time;

/// Parses the age of a command from which its namespace is stalled.
pub fn parse_stall_after(text: &str) -> Result<Duration, String> {
    parse_time_within(text, 60)
}

/// Parses the age at which a command is given back to its host.
pub fn parse_answer_within(text: &str) -> Result<Duration, String> {
    parse_time_within(text, 600)
}

fn parse_time_within(text: &str, max_s: u64) -> Result<Duration, String> {
    let time = parse_time(text)?;
    let is_allowed = (Duration::from_secs(1)..=Duration::from_secs(max_s)).contains(&time);
    if is_allowed { Ok(time) } else { Err(format!("write a time from 1s to {max_s}s")) }
}

/// Returns both times. A command is given back only after its namespace is stalled.
pub fn checked(stall_after: Duration, answer_within: Duration) -> Result<(Duration, Duration), Failure> {
    if stall_after <= answer_within {
        return Ok((stall_after, answer_within));
    }
    let reason = format!("{stall_after:?} is longer than --answer-within, which is {answer_within:?}");
    Err(Failure::new("cannot use --stall-after", reason)
        .with_hint("use a shorter time, or a longer --answer-within"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_times_in_their_order() {
        assert_eq!(parse_stall_after("1500ms"), Ok(Duration::from_millis(1500)));
        assert!(parse_stall_after("61s").unwrap_err().contains("60s"));
        assert!(parse_answer_within("0.5s").unwrap_err().contains("1s"));
        let [short, long] = [parse_answer_within("2").unwrap(), parse_answer_within("10m").unwrap()];
        assert_eq!(checked(short, long).unwrap(), (short, long));
        assert!(checked(long, short).unwrap_err().to_string().contains("600s is longer than"));
    }
}
