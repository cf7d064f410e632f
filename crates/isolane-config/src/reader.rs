//! Reader of the tables of a document, which collects all problems and the lines of all keys.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use isolane_volumes::Kinds;
use toml_edit::Item;

use crate::problem::{Invalid, MAX_SHOWN_PROBLEMS, Problem, Problems, has_secret, shortened, shown};

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

    /// Records the location of a key.
    pub fn record(&mut self, place: &str, key: &'static str, span: Option<Range<usize>>) {
        self.spans.extend(span.map(|span| ((place.to_owned(), key), span)));
    }

    /// Reports a key that is missing.
    pub fn missing(&mut self, place: &str, key: &str, remedy: String) {
        let span = self.spans.get(&(place.to_owned(), "")).cloned();
        self.report(span, place, key, None, Invalid::new("missing", remedy));
    }

    /// Reports a key that must not be there.
    pub fn unexpected(&mut self, span: Option<Range<usize>>, place: &str, key: &str, invalid: Invalid) {
        self.report(span, place, &shown(key), None, invalid);
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
        let (reason, remedy) = (shortened(reason), shortened(remedy));
        let problem = Problem { line, place: place.to_owned(), key: key.to_owned(), value, reason, remedy };
        self.problems.insert((line.unwrap_or(0), self.count), problem);
        self.count += 1;
        if self.problems.len() > MAX_SHOWN_PROBLEMS {
            self.problems.pop_last();
        }
    }
}
