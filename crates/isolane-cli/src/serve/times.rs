//! Times after which a target does not wait for its volumes.

use std::time::Duration;

use isolane_config::{Config, Time};
use isolane_target::StallTimes;

use crate::failure::Failure;
use crate::units::parse_time;

/// The times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct Times {
    /// Time from which a namespace whose volume has not completed a command is shown as stalled: from 1s to 60s
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_stall_after)]
    pub stall_after: Duration,
    /// Time after which a command that its volume or a limit holds is given back to its host, which repeats it: from 1s to
    /// 600s. Linux resets its controller after 30 s
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = parse_answer_within)]
    pub answer_within: Duration,
}

/// Returns the times of a configuration.
pub fn plan(config: &Config) -> StallTimes {
    let default = StallTimes::default();
    StallTimes {
        stall_after: config.server.stall_after.map_or(default.stall_after, Time::get),
        answer_within: config.server.answer_within.map_or(default.answer_within, Time::get),
    }
}

fn parse_stall_after(text: &str) -> Result<Duration, String> {
    parse_time_within(text, 60)
}

fn parse_answer_within(text: &str) -> Result<Duration, String> {
    parse_time_within(text, 600)
}

fn parse_time_within(text: &str, max_s: u64) -> Result<Duration, String> {
    let time = parse_time(text)?;
    let is_allowed = (Duration::from_secs(1)..=Duration::from_secs(max_s)).contains(&time);
    if is_allowed { Ok(time) } else { Err(format!("write a time from 1s to {max_s}s")) }
}

impl Times {
    /// Returns both times. A command is given back only after its namespace is stalled.
    pub fn checked(self) -> Result<(Duration, Duration), Failure> {
        let Times { stall_after, answer_within } = self;
        if stall_after <= answer_within {
            return Ok((stall_after, answer_within));
        }
        let reason = format!("{stall_after:?} is longer than --answer-within, which is {answer_within:?}");
        Err(Failure::new("cannot use --stall-after", reason)
            .with_hint("use a shorter time, or a longer --answer-within"))
    }
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
        let checked = |stall_after, answer_within| Times { stall_after, answer_within }.checked();
        assert_eq!(checked(short, long).unwrap(), (short, long));
        assert!(checked(long, short).unwrap_err().to_string().contains("600s is longer than"));
    }
}
