//! Limiter of log lines that clients can cause: a few lines for each user, then a count of the others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Lines since the last count.
#[derive(Debug, Default)]
pub(super) struct LogLimiter {
    /// Time of the first line.
    since: Option<Instant>,
    users: BTreeMap<u32, UserCount>,
    /// All users beyond [`MAX_USERS`].
    others: UserCount,
}

/// Lines about a user.
#[derive(Clone, Copy, Debug, Default)]
struct UserCount {
    written: u32,
    suppressed: u64,
}

impl LogLimiter {
    /// Returns whether a line about a user may be written; otherwise it is counted.
    pub fn admit(&mut self, uid: u32, now: Instant) -> bool {
        self.since.get_or_insert(now);
        let has_slot = self.users.len() < MAX_USERS || self.users.contains_key(&uid);
        let lines = if has_slot { self.users.entry(uid).or_default() } else { &mut self.others };
        let admitted = lines.written < MAX_LINES;
        if admitted {
            lines.written += 1
        } else {
            lines.suppressed += 1
        }
        admitted
    }

    /// Time of the next call of [`LogLimiter::poll_counts`].
    pub fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + INTERVAL)
    }

    /// Returns lines with the counts of suppressed lines, once the interval has ended.
    pub fn poll_counts(&mut self, now: Instant) -> Vec<String> {
        if self.due().is_none_or(|due| now < due) {
            return Vec::new();
        }
        let LogLimiter { users, others, .. } = std::mem::take(self);
        let seconds = INTERVAL.as_secs();
        let count = |(users, lines): (String, UserCount)| match lines.suppressed {
            0 => None,
            count => {
                Some(format!("{count} more lines about clients of {users} within {seconds} s suppressed"))
            }
        };
        let users = users.into_iter().map(|(uid, lines)| (format!("user {uid}"), lines));
        users.chain([("other users".to_owned(), others)]).filter_map(count).collect()
    }
}

/// Lines per user and interval.
const MAX_LINES: u32 = 10;
/// Users that are counted separately in an interval.
const MAX_USERS: usize = 32;
const INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admits_few_lines_per_user_and_counts_others() {
        let (mut limiter, now) = (LogLimiter::default(), Instant::now());
        assert_eq!(limiter.due(), None);
        let written = (0..1000).filter(|_| limiter.admit(7, now)).count();
        assert_eq!(written, MAX_LINES as usize);
        assert!(limiter.admit(8, now + INTERVAL / 2), "lines are counted per user");
        assert!(limiter.poll_counts(now + INTERVAL / 2).is_empty());
        let due = limiter.due().unwrap();
        let counts = limiter.poll_counts(due);
        assert_eq!(counts.len(), 1);
        assert!(counts[0].starts_with("990 more lines about clients of user 7 within"), "{counts:?}");
        assert!(limiter.due().is_none() && limiter.admit(7, due));
    }

    #[test]
    fn bounds_lines_of_many_users() {
        let (mut limiter, now) = (LogLimiter::default(), Instant::now());
        let written = (0..100_000).filter(|uid| limiter.admit(*uid, now)).count();
        assert_eq!(written, MAX_USERS + MAX_LINES as usize);
        let counts = limiter.poll_counts(now + INTERVAL);
        assert_eq!(counts.len(), 1);
        assert!(counts[0].contains("of other users"), "{counts:?}");
    }
}
