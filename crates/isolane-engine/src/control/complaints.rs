//! Lines of the log that clients can cause as often as they like: a few for each user, and then how many more
//! there were.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What was said of whom since the last count.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    /// When the first line since then was due.
    since: Option<Instant>,
    users: BTreeMap<u32, Lines>,
    /// Of all users that there was no room for.
    others: Lines,
}

/// Lines about one user.
#[derive(Clone, Copy, Debug, Default)]
struct Lines {
    written: u32,
    left_out: u64,
}

impl Complaints {
    /// Whether one more line about a user may be written; else it is counted.
    pub fn may_write(&mut self, uid: u32, now: Instant) -> bool {
        self.since.get_or_insert(now);
        let has_room = self.users.len() < USERS_MAX || self.users.contains_key(&uid);
        let lines = if has_room { self.users.entry(uid).or_default() } else { &mut self.others };
        let is_due = lines.written < LINES_MAX;
        match is_due {
            true => lines.written += 1,
            false => lines.left_out += 1,
        }
        is_due
    }

    /// When the lines that were left out are to be counted.
    pub fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + INTERVAL)
    }

    /// The counts, if it is time: what is to be written about lines that were not.
    pub fn poll_counts(&mut self, now: Instant) -> Vec<String> {
        if self.due().is_none_or(|due| now < due) {
            return Vec::new();
        }
        let Complaints { users, others, .. } = std::mem::take(self);
        let seconds = INTERVAL.as_secs();
        let count = |(whom, lines): (String, Lines)| match lines.left_out {
            0 => None,
            count => {
                Some(format!("{count} more lines about clients of {whom} within {seconds} s are left out"))
            }
        };
        let users = users.into_iter().map(|(uid, lines)| (format!("user {uid}"), lines));
        users.chain([("other users".to_owned(), others)]).filter_map(count).collect()
    }
}

/// Lines about a user in an interval.
const LINES_MAX: u32 = 10;
/// Users that are told apart in an interval.
const USERS_MAX: usize = 32;
const INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_lines_are_written_about_each_user_and_the_others_counted() {
        let (mut complaints, now) = (Complaints::default(), Instant::now());
        assert_eq!(complaints.due(), None);
        let written = (0..1000).filter(|_| complaints.may_write(7, now)).count();
        assert_eq!(written, LINES_MAX as usize);
        assert!(complaints.may_write(8, now + INTERVAL / 2), "another user has lines of its own");
        assert!(complaints.poll_counts(now + INTERVAL / 2).is_empty());
        let due = complaints.due().unwrap();
        let counts = complaints.poll_counts(due);
        assert_eq!(counts.len(), 1);
        assert!(counts[0].starts_with("990 more lines about clients of user 7 within"), "{counts:?}");
        assert!(complaints.due().is_none() && complaints.may_write(7, due));
    }

    #[test]
    fn however_many_users_there_are_the_lines_are_bounded() {
        let (mut complaints, now) = (Complaints::default(), Instant::now());
        let written = (0..100_000).filter(|uid| complaints.may_write(*uid, now)).count();
        assert_eq!(written, USERS_MAX + LINES_MAX as usize);
        let counts = complaints.poll_counts(now + INTERVAL);
        assert_eq!(counts.len(), 1);
        assert!(counts[0].contains("of other users"), "{counts:?}");
    }
}
