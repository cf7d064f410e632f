//! Errors of a configuration: where, what, why, and the remedy.

use std::fmt;

/// Problems that are shown; others are only counted.
pub const MAX_SHOWN_PROBLEMS: usize = 20;
/// Characters of a value that an error shows.
const MAX_SHOWN_CHARS: usize = 64;
/// Characters of a cause or a remedy.
const MAX_SENTENCE_CHARS: usize = 400;

/// One error of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line in the file, from 1; `None` for a model without a file.
    pub line: Option<usize>,
    /// The object, such as `port left`; empty for the file itself.
    pub place: String,
    /// The key of the object, or empty.
    pub key: String,
    /// The value, shortened, as written in the file.
    pub value: Option<String>,
    /// Cause.
    pub reason: String,
    /// Remedy, as an imperative.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = match (&*self.key, &self.value) {
            ("", _) => String::new(),
            (key, None) => key.to_owned(),
            (key, Some(value)) => format!("{key} = {value}"),
        };
        for part in [&self.place, &subject].into_iter().filter(|part| !part.is_empty()) {
            write!(f, "{part}: ")?;
        }
        write!(f, "{}; {}", self.reason, self.remedy)
    }
}

/// Cause and remedy of an invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Cause.
    pub reason: String,
    /// Remedy, as an imperative.
    pub remedy: String,
}

impl Invalid {
    /// Returns a cause and its remedy.
    pub fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Invalid {
        Invalid { reason: reason.into(), remedy: remedy.into() }
    }
}

/// All errors of a configuration, in the order of their lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// Name of the file.
    pub file: String,
    /// The first problems, at most [`MAX_SHOWN_PROBLEMS`].
    pub shown: Vec<Problem>,
    /// Number of all problems.
    pub count: usize,
}

impl fmt::Display for Problems {
    /// Writes a line for each problem: `FILE:LINE: OBJECT: KEY = VALUE: REASON; REMEDY`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.shown.iter().enumerate() {
            let end = if at == 0 { "" } else { "\n" };
            match problem.line {
                Some(line) => write!(f, "{end}{}:{line}: {problem}", self.file)?,
                None => write!(f, "{end}{}: {problem}", self.file)?,
            }
        }
        match self.count - self.shown.len() {
            0 => Ok(()),
            1 => write!(f, "\n{}: 1 more error", self.file),
            more => write!(f, "\n{}: {more} more errors", self.file),
        }
    }
}

impl Problems {
    /// Returns the same for a text that is in no file, so that its lines mean nothing to a reader.
    pub(crate) fn without_lines(mut self) -> Problems {
        self.shown.iter_mut().for_each(|problem| problem.line = None);
        self
    }
}

impl std::error::Error for Problems {}

/// Whether a text can contain a key of authentication.
pub(crate) fn has_secret(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["dhhc-1:", "nvmetlskey-1:"].iter().any(|prefix| text.contains(prefix))
}

/// Returns a value as written in a file, on one line and shortened, but no secret.
pub(crate) fn shown(text: &str) -> String {
    if has_secret(text) {
        return "(a key)".to_owned();
    }
    let line = text.trim().lines().next().unwrap_or_default();
    let mut short: String = line.chars().take(MAX_SHOWN_CHARS).collect();
    if short.len() < text.trim().len() {
        short.push('…');
    }
    short
}

/// Returns a sentence, which can quote a value, with a bounded length.
pub(crate) fn shortened(sentence: String) -> String {
    match sentence.char_indices().nth(MAX_SENTENCE_CHARS) {
        Some((end, _)) => format!("{}…", &sentence[..end]),
        None => sentence,
    }
}

/// Returns the known word that is most similar to `word`, if any is.
pub(crate) fn nearest<'w>(word: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let word: String = word.chars().take(MAX_COMPARED_CHARS).collect::<String>().to_ascii_lowercase();
    let similarity = |known: &&str| {
        let known = known.to_ascii_lowercase();
        // One slip in a short word changes much of it.
        if strsim::osa_distance(&word, &known) <= 1 { 1.0 } else { strsim::jaro_winkler(&word, &known) }
    };
    let nearest = known.max_by(|one, other| similarity(one).total_cmp(&similarity(other)));
    nearest.filter(|known| similarity(known) > MIN_SIMILARITY)
}

/// Similarity of a mistyped word, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.7;
/// Characters of a word that are compared.
const MAX_COMPARED_CHARS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortens_values_and_hides_keys() {
        assert_eq!(shown("\"10.0.0.1\""), "\"10.0.0.1\"");
        assert_eq!(shown("[\n  1,\n]"), "[…");
        assert!(shown(&"é".repeat(1000)).chars().count() < 70);
        assert_eq!(shown("\"DHHC-1:00:abc:\""), "(a key)");
        assert_eq!(shown(&format!("\"{}dhhc-1:00:abc:\"", " ".repeat(500))), "(a key)");
    }
}
