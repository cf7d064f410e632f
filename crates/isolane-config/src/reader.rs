//! Reader of the tables of a document, which collects all problems and the lines of all keys.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use isolane_volumes::Kinds;
use toml_edit::{Item, TableLike};

use crate::problem::{MAX_SHOWN_PROBLEMS, Problem, Problems, has_secret, shown};
use crate::table::{Entry, KeyInfo};

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

/// A document that is read, with the problems found until now.
pub(crate) struct Reader<'a> {
    text: &'a str,
    /// Offset of each line.
    lines: Vec<usize>,
    pub kinds: &'a Kinds,
    /// By line, then in the order found.
    problems: BTreeMap<(usize, usize), Problem>,
    count: usize,
    /// Location of each key, by object and key; an empty key is the object itself.
    spans: HashMap<(String, &'static str), Range<usize>>,
    /// Objects in the file, including invalid ones.
    declared: HashSet<String>,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a str, kinds: &'a Kinds) -> Reader<'a> {
        let starts = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Reader {
            text,
            lines: std::iter::once(0).chain(starts).collect(),
            kinds,
            problems: BTreeMap::new(),
            count: 0,
            spans: HashMap::new(),
            declared: HashSet::new(),
        }
    }

    /// Returns the value of a required key, if it is valid.
    pub fn required<T: Entry>(&mut self, table: &dyn TableLike, place: &str, key: &'static str) -> Option<T> {
        if !table.contains_key(key) {
            let span = self.spans.get(&(place.to_owned(), "")).cloned();
            self.report(span, place, key, None, Invalid::new("missing", T::example(key)));
        }
        self.optional(table, place, key).flatten()
    }

    /// Returns the value of an optional key: `Some(None)` if it is missing, `None` if it is invalid.
    pub fn optional<T: Entry>(
        &mut self,
        table: &dyn TableLike,
        place: &str,
        key: &'static str,
    ) -> Option<Option<T>> {
        let Some((name, item)) = table.get_key_value(key) else { return Some(None) };
        let span = item.span().or_else(|| name.span());
        if let Some(span) = span {
            self.spans.insert((place.to_owned(), key), span);
        }
        T::read(item, place, key, self).map(Some)
    }

    /// Reports keys that the table does not have.
    pub fn reject_unknown(&mut self, table: &dyn TableLike, place: &str, keys: &[KeyInfo]) {
        for (key, item) in table.iter() {
            if keys.iter().any(|known| known.name == key) {
                continue;
            }
            let span = table.get_key_value(key).and_then(|(key, _)| key.span()).or_else(|| item.span());
            let invalid = match RESERVED.iter().find(|(reserved, _)| *reserved == key) {
                Some((_, reason)) => Invalid::new(*reason, "remove it"),
                None => unknown_key(key, keys),
            };
            self.report(span, place, &shown(key), None, invalid);
        }
    }

    /// Reports the value of a key.
    pub fn invalid(&mut self, item: &Item, place: &str, key: &str, invalid: Invalid) {
        self.report(item.span(), place, key, self.slice(item.span()), invalid);
    }

    /// Reports the value of a key that was read before.
    pub fn invalid_key(&mut self, place: &str, key: &'static str, invalid: Invalid) {
        let span = self.span(place, key);
        let value = if key.is_empty() { None } else { self.slice(span.clone()) };
        self.report(span, place, key, value, invalid);
    }

    /// Reports an error of the syntax.
    pub fn invalid_syntax(&mut self, error: &toml_edit::TomlError) {
        let reason = error.message().trim().replace('\n', ", ");
        let remedy = "correct the syntax of TOML; a text needs quotes, and a key occurs once in its table";
        self.report(error.span(), "", "", None, Invalid::new(shown(&reason), remedy));
    }

    /// Records an object. Reports one that is there twice.
    pub fn declare(&mut self, item_span: Option<Range<usize>>, place: &str) {
        if self.declared.insert(place.to_owned()) {
            self.spans.extend(item_span.map(|span| ((place.to_owned(), ""), span)));
        } else {
            let first = self.span(place, "").map_or(1, |span| self.line(span.start));
            let invalid = Invalid::new(
                format!("already in line {first}"),
                "give it another name, or remove one of the two",
            );
            self.report(item_span, place, "", None, invalid);
        }
    }

    /// Whether the file has an object, valid or not.
    pub fn is_declared(&self, place: &str) -> bool {
        self.declared.contains(place)
    }

    /// Returns the line of a key, if the file has it.
    pub fn line_of(&self, place: &str, key: &'static str) -> Option<usize> {
        self.span(place, key).map(|span| self.line(span.start))
    }

    /// Returns the problems, if there are any.
    pub fn finish(self, file: &str) -> Result<(), Problems> {
        let shown: Vec<Problem> = self.problems.into_values().collect();
        if self.count == 0 {
            Ok(())
        } else {
            Err(Problems { file: file.to_owned(), shown, count: self.count })
        }
    }

    fn span(&self, place: &str, key: &'static str) -> Option<Range<usize>> {
        let of = |key| self.spans.get(&(place.to_owned(), key)).cloned();
        of(key).or_else(|| of(""))
    }

    fn line(&self, offset: usize) -> usize {
        self.lines.partition_point(|start| *start <= offset).max(1)
    }

    fn slice(&self, span: Option<Range<usize>>) -> Option<String> {
        self.text.get(span?).map(shown)
    }

    /// Keeps the problems of the first lines.
    fn report(
        &mut self,
        span: Option<Range<usize>>,
        place: &str,
        key: &str,
        value: Option<String>,
        invalid: Invalid,
    ) {
        let line = span.map(|span| self.line(span.start));
        let Invalid { reason, remedy } = if has_secret(&invalid.reason) || has_secret(&invalid.remedy) {
            Invalid::new("a key of authentication", "write it into a file that only its owner can read")
        } else {
            invalid
        };
        let problem = Problem { line, place: place.to_owned(), key: key.to_owned(), value, reason, remedy };
        self.problems.insert((line.unwrap_or(0), self.count), problem);
        self.count += 1;
        if self.problems.len() > MAX_SHOWN_PROBLEMS {
            self.problems.pop_last();
        }
    }
}

/// Returns the error of an unknown key, with the nearest known one.
fn unknown_key(key: &str, keys: &[KeyInfo]) -> Invalid {
    let nearest = nearest(key, keys.iter().map(|known| known.name));
    let remedy = nearest.map_or_else(
        || format!("use {}", keys.iter().map(|known| known.name).collect::<Vec<_>>().join(", ")),
        |nearest| format!("write {nearest}"),
    );
    Invalid::new("unknown key", remedy)
}

/// Returns the known word that is most similar to `word`, if any is.
pub(crate) fn nearest<'w>(word: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let word: String = word.chars().take(MAX_COMPARED_CHARS).collect::<String>().to_ascii_lowercase();
    let similarity = |known: &&str| strsim::jaro_winkler(&word, &known.to_ascii_lowercase());
    let nearest = known.max_by(|one, other| similarity(one).total_cmp(&similarity(other)));
    nearest.filter(|known| similarity(known) > MIN_SIMILARITY)
}

/// Keys of later versions.
const RESERVED: [(&str, &str); 2] = [
    ("security", "this version has no TLS; a port has no key `security` yet"),
    ("tls-key", "this version has no TLS; a host has no key `tls-key` yet"),
];
/// Similarity of a mistyped word, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.7;
/// Characters of a word that are compared.
const MAX_COMPARED_CHARS: usize = 64;
