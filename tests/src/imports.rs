//! Import graph between the files of a crate.
//!
//! Reads `use` declarations and inline `crate::`, `super::`, and `self::` paths from the text of the
//! sources, and follows re-exports to the file that defines a name. Test code, a re-export of a
//! descendant, and imports between a module and its own child do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Imports that are part of a cycle between files of the crate with this `src` directory, each as
/// `a.rs imports b.rs`.
///
/// # Errors
/// An error of the file system.
pub fn cyclic_imports(src: &Path) -> io::Result<Vec<String>> {
    Ok(Graph::new(&sources(src)?).cyclic_imports())
}

/// Imports that are part of a cycle between sibling modules, each with its descendants: `a/x.rs imports b.rs` and
/// `b.rs imports a/y.rs`.
///
/// # Errors
/// An error of the file system.
pub fn cyclic_modules(src: &Path) -> io::Result<Vec<String>> {
    Ok(Graph::new(&sources(src)?).cyclic_modules())
}

/// Pairs of a path below `src` and a text.
fn sources(src: &Path) -> io::Result<Vec<(PathBuf, String)>> {
    let mut paths = vec![src.to_owned()];
    let mut sources = Vec::new();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let entries: io::Result<Vec<_>> = fs::read_dir(path)?.collect();
            paths.extend(entries?.iter().map(fs::DirEntry::path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            sources.push((path.strip_prefix(src).unwrap_or(&path).to_owned(), text));
        }
    }
    sources.sort();
    Ok(sources)
}

#[derive(Debug, Default)]
struct Module {
    path: Vec<String>,
    file: PathBuf,
    imports: Vec<Import>,
    /// Absolute paths in expressions and types; their first segment is a module of the crate.
    inline: Vec<Vec<String>>,
    defined: BTreeSet<String>,
    test_modules: Vec<Vec<String>>,
}

/// One leaf of a `use` declaration.
#[derive(Debug)]
struct Import {
    /// Absolute within the crate.
    path: Vec<String>,
    /// `*` for a glob.
    name: String,
    public: bool,
}

struct Graph {
    modules: Vec<Module>,
    index: BTreeMap<Vec<String>, usize>,
}

impl Graph {
    /// Sources are pairs of a path below `src` and a text.
    fn new(sources: &[(PathBuf, String)]) -> Self {
        let library = sources.iter().filter(|(path, _)| !path.starts_with("bin"));
        let mut modules: Vec<Module> = library.map(|(path, text)| Module::parse(path, text)).collect();
        let test_modules: Vec<_> = modules.iter().flat_map(|module| module.test_modules.clone()).collect();
        modules.retain(|module| !test_modules.iter().any(|test| module.path.starts_with(test)));
        let index = modules.iter().enumerate().map(|(at, module)| (module.path.clone(), at)).collect();
        Self { modules, index }
    }

    /// Imports within strongly connected components.
    fn cyclic_imports(&self) -> Vec<String> {
        let edges = self.edges();
        let reaches = reach(&edges);
        let cyclic = edges.iter().filter(|(from, to)| reaches[to].contains(from));
        cyclic.map(|edge| self.describe(*edge)).collect()
    }

    /// Imports between siblings within strongly connected components.
    fn cyclic_modules(&self) -> Vec<String> {
        let edges: Vec<_> =
            self.edges().into_iter().filter_map(|edge| Some((edge, self.siblings(edge)?))).collect();
        let between: Vec<_> = edges.iter().map(|(_, siblings)| *siblings).collect();
        let reaches = reach(&between);
        let cyclic = edges.iter().filter(|(_, (from, to))| reaches[to].contains(from));
        cyclic.map(|(edge, _)| self.describe(*edge)).collect()
    }

    /// Pairs of an importing and an imported module.
    fn edges(&self) -> Vec<(usize, usize)> {
        let from = 0..self.modules.len();
        from.flat_map(|from| self.targets(from).into_iter().map(move |to| (from, to))).collect()
    }

    /// The siblings that contain two modules; `None` if one of the modules contains the other.
    fn siblings(&self, (from, to): (usize, usize)) -> Option<(&[String], &[String])> {
        let (from, to) = (&self.modules[from].path, &self.modules[to].path);
        let common = from.iter().zip(to).take_while(|(from, to)| from == to).count();
        Some((from.get(..=common)?, to.get(..=common)?))
    }

    fn describe(&self, (from, to): (usize, usize)) -> String {
        format!("{} imports {}", self.modules[from].file.display(), self.modules[to].file.display())
    }

    /// Modules that a module imports from.
    fn targets(&self, from: usize) -> BTreeSet<usize> {
        let module = &self.modules[from];
        let reexports_descendant = |import: &&Import| import.public && import.path.starts_with(&module.path);
        let imports = module.imports.iter().filter(|import| !reexports_descendant(import));
        let paths = imports.map(|import| &import.path).chain(&module.inline);
        let targets = paths.filter_map(|path| self.definition(path, 8));
        let is_child = |child: &[String], parent: &[String]| {
            child.len() == parent.len() + 1 && child.starts_with(parent)
        };
        targets
            .filter(|to| {
                let other = &self.modules[*to].path;
                *to != from && !is_child(other, &module.path) && !is_child(&module.path, other)
            })
            .collect()
    }

    /// Module that defines the item at a path, through at most `depth` re-exports.
    fn definition(&self, path: &[String], depth: usize) -> Option<usize> {
        let prefix = (0..=path.len()).rev().find(|len| self.index.contains_key(&path[..*len]))?;
        let at = self.index[&path[..prefix]];
        let module = &self.modules[at];
        let Some(name) = path.get(prefix).filter(|name| depth > 0 && !module.defined.contains(*name)) else {
            return Some(at);
        };
        let through = |import: &Import| -> Option<usize> {
            let tail = &path[prefix + usize::from(import.name != "*")..];
            self.definition(&[&import.path, tail].concat(), depth - 1)
        };
        if let Some(import) = module.imports.iter().find(|import| import.name == *name) {
            return through(import).or(Some(at));
        }
        let globs = module.imports.iter().filter(|import| import.name == "*" && import.public);
        let mut candidates = globs.filter_map(through);
        candidates.find(|to| self.modules[*to].defined.contains(name)).or(Some(at))
    }
}

/// Nodes that each node reaches along at least one edge.
fn reach<N: Copy + Ord>(edges: &[(N, N)]) -> BTreeMap<N, BTreeSet<N>> {
    let mut reaches: BTreeMap<N, BTreeSet<N>> = BTreeMap::new();
    for (from, to) in edges {
        reaches.entry(*from).or_default().insert(*to);
        reaches.entry(*to).or_default();
    }
    for via in reaches.keys().copied().collect::<Vec<_>>() {
        let beyond = reaches[&via].clone();
        for reach in reaches.values_mut().filter(|reach| reach.contains(&via)) {
            reach.extend(&beyond);
        }
    }
    reaches
}

impl Module {
    fn parse(file: &Path, text: &str) -> Self {
        let names = file.with_extension("");
        let mut path: Vec<String> = names.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        path.pop_if(|last| ["lib", "main", "mod"].contains(&last.as_str()));
        let mut module = Self { path, file: file.to_owned(), ..Self::default() };
        module.read(&tokens(text));
        module
    }

    fn read(&mut self, tokens: &[&str]) {
        const KEYWORDS: [&str; 9] =
            ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];
        // Modules with a body in this file, each with the depth of braces at its start.
        let (mut inner, mut depth): (Vec<(String, usize)>, usize) = (Vec::new(), 0);
        let (mut at, mut public) = (0, false);
        while at < tokens.len() {
            let scope: Vec<String> = inner.iter().map(|(name, _)| name.clone()).collect();
            let scope = [self.path.clone(), scope].concat();
            match tokens[at] {
                "#" if is_test_attribute(&tokens[at..]) => {
                    let end = at + item_len(&tokens[at..]);
                    if let Some(mod_at) = tokens[at..end].iter().position(|token| *token == "mod")
                        && tokens[at + mod_at + 2] == ";"
                    {
                        self.test_modules.push([scope, vec![tokens[at + mod_at + 1].to_owned()]].concat());
                    }
                    at = end;
                    continue;
                }
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    inner.pop_if(|(_, start)| *start == depth);
                    public = false;
                }
                "mod" if tokens.get(at + 2) == Some(&"{") => inner.push((tokens[at + 1].to_owned(), depth)),
                "pub" => public = true,
                ";" | "=" => public = false,
                "use" if tokens.get(at + 1) != Some(&"<") => {
                    let end = at + tokens[at..].iter().position(|token| *token == ";").unwrap_or_default();
                    let leaves = use_leaves(&tokens[at + 1..end]);
                    self.imports.extend(leaves.into_iter().map(|(path, name)| {
                        let path = absolute(&scope, &path).unwrap_or_else(|| [scope.clone(), path].concat());
                        Import { path, name, public }
                    }));
                    (at, public) = (end, false);
                }
                keyword if KEYWORDS.contains(&keyword) => {
                    let name = tokens[at + 1..].iter().find(|token| **token != "!");
                    self.defined.extend(name.map(|name| (*name).to_owned()));
                    public = false;
                }
                "crate" | "super" | "self" if tokens.get(at + 1) == Some(&"::") => {
                    let mut path = vec![tokens[at].to_owned()];
                    while tokens.get(at + 1) == Some(&"::") && is_word(tokens.get(at + 2).unwrap_or(&"")) {
                        path.push(tokens[at + 2].to_owned());
                        at += 2;
                    }
                    self.inline.extend(absolute(&scope, &path));
                }
                head if tokens.get(at + 1) == Some(&"::")
                    && is_word(head)
                    && (at == 0 || tokens[at - 1] != "::") =>
                {
                    let path = vec![head.to_owned(), tokens[at + 2].to_owned()];
                    self.inline.push([scope, path].concat());
                }
                _ => {}
            }
            at += 1;
        }
    }
}

/// Path from the root of the crate; `None` without a leading `crate`, `super`, or `self`.
fn absolute(scope: &[String], path: &[String]) -> Option<Vec<String>> {
    let mut base = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "super" | "self" => scope.to_vec(),
        _ => return None,
    };
    let supers = path.iter().take_while(|segment| *segment == "super").count();
    base.truncate(base.len().saturating_sub(supers));
    Some([&base, &path[supers.max(1)..]].concat())
}

/// Paths of a `use` declaration, each with the name that it declares.
fn use_leaves(tokens: &[&str]) -> Vec<(Vec<String>, String)> {
    let (mut found, mut stack) = (Vec::new(), Vec::new());
    let (mut path, mut base): (Vec<String>, usize) = (Vec::new(), 0);
    let mut name = None;
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" => {
                stack.push(base);
                base = path.len();
            }
            "," | "}" => {
                if path.len() > base {
                    found.push((path.clone(), name.take()));
                }
                path.truncate(base);
                if *token == "}" {
                    base = stack.pop().unwrap_or_default();
                    path.truncate(base);
                }
            }
            "::" | "as" => {}
            alias if at > 0 && tokens[at - 1] == "as" => name = Some(alias.to_owned()),
            segment => path.push(segment.to_owned()),
        }
    }
    if !path.is_empty() && tokens.last() != Some(&"}") {
        found.push((path, name));
    }
    let leaf = |(mut path, alias): (Vec<String>, Option<String>)| {
        if path.len() > 1 {
            path.pop_if(|last| last == "self");
        }
        let last = path.pop_if(|last| last == "*").or_else(|| path.last().cloned()).unwrap_or_default();
        (path, alias.unwrap_or(last))
    };
    found.into_iter().map(leaf).collect()
}

fn is_test_attribute(tokens: &[&str]) -> bool {
    tokens.starts_with(&["#", "[", "cfg", "(", "test", ")"])
        || tokens.starts_with(&["#", "[", "cfg", "(", "all", "(", "test", ","])
}

/// Number of tokens up to the end of an item that starts with an attribute.
fn item_len(tokens: &[&str]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 && (*token == ";" || *token == "}") {
            return at + 1;
        }
    }
    tokens.len()
}

fn is_word(token: &str) -> bool {
    token.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
}

/// Words, `::`, and single characters of Rust code, without comments, strings, and characters.
fn tokens(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut tail = text;
    while let Some(first) = tail.chars().next() {
        let word_len = tail.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
        let len = match first {
            '/' if tail.starts_with("//") => tail.find('\n').unwrap_or(tail.len()),
            '/' if tail.starts_with("/*") => tail.find("*/").map_or(tail.len(), |at| at + 2),
            'r' if tail.starts_with("r\"") || tail.starts_with("r#\"") => {
                let end = if tail.starts_with("r#") { "\"#" } else { "\"" };
                tail[3..].find(end).map_or(tail.len(), |at| at + 3 + end.len())
            }
            '"' => string_len(tail, '"'),
            '\'' if tail[1..].starts_with('\\') || tail[1..].chars().nth(1) == Some('\'') => {
                string_len(tail, '\'')
            }
            _ if word_len != Some(0) => word_len.unwrap_or(tail.len()),
            _ => first.len_utf8() + usize::from(tail.starts_with("::")),
        };
        let is_code = !first.is_whitespace() && first != '"' && first != '\'' && !tail.starts_with("//");
        found.extend(is_code.then_some(&tail[..len]).filter(|token| !token.contains(['"', '\n'])));
        tail = &tail[len..];
    }
    found
}

/// Length of a literal that starts and ends with `quote`.
fn string_len(text: &str, quote: char) -> usize {
    let mut escaped = true;
    for (at, letter) in text.char_indices() {
        if letter == quote && !escaped {
            return at + 1;
        }
        escaped = letter == '\\' && !escaped;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(sources: &[(&str, &str)]) -> Graph {
        let sources: Vec<_> = sources.iter().map(|(path, text)| (path.into(), (*text).to_owned())).collect();
        Graph::new(&sources)
    }

    fn cycles_of(sources: &[(&str, &str)]) -> Vec<String> {
        graph(sources).cyclic_imports()
    }

    #[test]
    fn finds_a_cycle_of_modules_over_their_children() {
        let graph = graph(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b; pub struct A; pub struct N;"),
            ("b/mod.rs", "mod inner; use crate::c::C; pub fn f() { inner::g() }"),
            ("b/inner.rs", "use crate::a::A; pub fn g() {}"),
            ("c.rs", "pub struct C;"),
        ]);
        assert_eq!(graph.cyclic_imports(), Vec::<String>::new());
        assert_eq!(graph.cyclic_modules(), ["a.rs imports b/mod.rs", "b/inner.rs imports a.rs"]);
    }

    #[test]
    fn finds_a_cycle_of_imports() {
        let found = cycles_of(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::{self, B}; pub struct A;"),
            ("b.rs", "pub struct B; fn f() -> usize { super::c::N }"),
            ("c.rs", "use super::{a::A as Alias}; pub const N: usize = 1;"),
        ]);
        assert_eq!(found, ["a.rs imports b.rs", "b.rs imports c.rs", "c.rs imports a.rs"]);
    }

    #[test]
    fn follows_reexports_to_the_definition() {
        let found = cycles_of(&[
            ("lib.rs", "mod a; mod b; pub use a::A; pub use b::inner::B;"),
            ("a.rs", "use crate::B; pub struct A;"),
            ("b/mod.rs", "pub mod inner;"),
            ("b/inner.rs", "use crate::A; pub struct B;"),
        ]);
        assert_eq!(found, ["a.rs imports b/inner.rs", "b/inner.rs imports a.rs"]);
    }

    #[test]
    fn allows_a_parent_and_its_child() {
        let found = cycles_of(&[
            ("lib.rs", "mod a; use a::A; pub struct Root;"),
            ("a.rs", "mod child; use child::C; use crate::Root; pub struct A;"),
            ("a/child.rs", "use super::A; pub struct C;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn ignores_tests_comments_and_strings() {
        let found = cycles_of(&[
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod tests;"),
            (
                "a.rs",
                "// use crate::b::B;\nconst S: &str = \"crate::b::B\"; #[cfg(test)] mod tests { use crate::b::B; }",
            ),
            ("b.rs", "use crate::a::S; const C: char = '\"';"),
            ("tests.rs", "use crate::b::B;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
