//! Values that a check has read, one for each device or core.

use serde::Serialize;

use crate::system::ReadError;
use crate::text::shown_name;

/// Limit for the number of values in a finding.
const MAX_VALUES: usize = 8;

/// Limit in characters of one value.
const MAX_VALUE_CHARS: usize = 200;

/// State of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All values are good.
    Good,
    /// A value is not good.
    Bad,
    /// Data could not be read, so the check is not good.
    Unseen,
    /// The system has nothing to check.
    Absent,
}

/// The values of one check.
#[derive(Debug, Default)]
pub(super) struct Survey {
    good: Vec<String>,
    bad: Vec<String>,
    unseen: Vec<String>,
    absent: Vec<String>,
    remedy: Vec<String>,
}

impl Survey {
    /// Records a good value.
    pub(super) fn good(&mut self, value: impl Into<String>) {
        self.good.push(value.into());
    }

    /// Records a value that is not good, and the command that fixes it.
    pub(super) fn bad(&mut self, value: impl Into<String>, remedy: impl Into<String>) {
        self.bad.push(value.into());
        let remedy = remedy.into();
        let is_new = self.remedy.len() < MAX_VALUES && !self.remedy.contains(&remedy);
        // A name with control characters could end the line of a script.
        if is_new && !remedy.contains(char::is_control) {
            self.remedy.push(remedy);
        }
    }

    /// Records a good or a bad value.
    pub(super) fn judge(&mut self, is_good: bool, value: impl Into<String>, remedy: impl Into<String>) {
        if is_good { self.good(value) } else { self.bad(value, remedy) }
    }

    /// Records data that could not be read.
    pub(super) fn unseen(&mut self, reason: impl ToString) {
        self.unseen.push(reason.to_string());
    }

    /// Records that the system has nothing to check.
    pub(super) fn absent(&mut self, reason: impl Into<String>) {
        self.absent.push(reason.into());
    }

    /// Returns `true` if nothing was recorded.
    pub(super) fn is_empty(&self) -> bool {
        [&self.good, &self.bad, &self.unseen, &self.absent].iter().all(|values| values.is_empty())
    }

    /// Returns a value, or records why it could not be read.
    pub(super) fn take<T>(&mut self, result: Result<T, ReadError>) -> Option<T> {
        result.map_err(|error| self.unseen(error)).ok()
    }

    /// Returns state, value, and remedies. A bad value decides, then missing data.
    pub(super) fn finish(self) -> (State, String, Vec<String>) {
        let unseen = list("not seen: ", &self.unseen);
        let (state, value) = if !self.bad.is_empty() {
            (State::Bad, [list("", &self.bad), unseen].into_iter().flatten().collect::<Vec<_>>().join("; "))
        } else if let Some(unseen) = unseen {
            (State::Unseen, unseen)
        } else if let Some(good) = list("", &self.good) {
            (State::Good, good)
        } else if let Some(absent) = list("", &self.absent) {
            (State::Absent, absent)
        } else {
            (State::Unseen, "not seen: no value".into())
        };
        (state, value, self.remedy)
    }
}

fn list(prefix: &str, values: &[String]) -> Option<String> {
    let shown: Vec<String> =
        values.iter().take(MAX_VALUES).map(|value| shown_name(value, MAX_VALUE_CHARS)).collect();
    let more = values.len().saturating_sub(MAX_VALUES);
    let more = if more > 0 { format!("; {more} more") } else { String::new() };
    (!shown.is_empty()).then(|| format!("{prefix}{}{more}", shown.join("; ")))
}

/// Quotes a word for a shell.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+=:@%,".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
