//! The level of the log, while the target runs: `/v1/log-level`.

use isolane_inspect::program::{Reply, Request};
use log::LevelFilter;

use super::bodies::{Level, LogLevel, reply};
use super::read;

const LEVELS: [(Level, LevelFilter); 6] = [
    (Level::Off, LevelFilter::Off),
    (Level::Error, LevelFilter::Error),
    (Level::Warn, LevelFilter::Warn),
    (Level::Info, LevelFilter::Info),
    (Level::Debug, LevelFilter::Debug),
    (Level::Trace, LevelFilter::Trace),
];

/// Returns the level, or sets it.
pub fn execute(request: &Request) -> Reply {
    if request.method == "POST" {
        let level = match read::<LogLevel>(request) {
            Ok(LogLevel { level }) => LEVELS[level as usize].1,
            Err(problem) => return problem,
        };
        log::set_max_level(level);
    }
    let level = LEVELS[log::max_level() as usize].0;
    reply(200, &LogLevel { level })
}
