//! Kinds of nested volumes: their syntax, and how they are opened.

use std::collections::HashSet;
use std::path::absolute;
use std::sync::Arc;

use isolane_volume::spec::{self, Source, SpecError, VolumeSpec};
use isolane_volume::{OpenError, Volume, inherited_memory};

use crate::parts::Parts;
use crate::remote::JournalFile;
use crate::{delay, fault, log, mirror, read_only, remote, stall, stripe};

/// A kind of nested volume: `NAME:ARGUMENT:MEMBER;MEMBER…,OPTION=VALUE`. A filter has one member, a remote volume none.
pub struct Kind {
    name: &'static str,
    /// Meaning of the argument, if the kind has one.
    argument: Option<&'static str>,
    members: Members,
    /// Options that it accepts besides `ro`, `nsid`, `uuid`, and `group`.
    options: &'static [&'static str],
    open: Open,
}

/// Opens a volume of a kind.
enum Open {
    /// From all of its members.
    All(fn(Parts) -> Opened),
    /// From the members that can be opened, and the errors of the others.
    Any(fn(Parts, Vec<Opened>) -> Opened),
    /// By the program that added the kind, from the whole specification.
    Added(Box<dyn Fn(&VolumeSpec) -> Opened + Send + Sync>),
}

type Opened = Result<Arc<dyn Volume>, OpenError>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Members {
    /// The text is an address.
    None,
    One,
    Several,
}

const STANDARD: [Kind; 8] = [
    Kind {
        name: "delay",
        argument: Some("duration"),
        members: Members::One,
        options: &["depth", "on", "from", "for"],
        open: Open::All(delay::open),
    },
    Kind {
        name: "fault",
        argument: Some("number of requests"),
        members: Members::One,
        options: &["on", "from", "for"],
        open: Open::All(fault::open),
    },
    Kind {
        name: "log",
        argument: None,
        members: Members::One,
        options: &["on", "from", "for"],
        open: Open::All(log::open),
    },
    Kind {
        name: "mirror",
        argument: None,
        members: Members::Several,
        options: &["bitmap", "create", "degraded", "keep", "member-timeout"],
        open: Open::Any(mirror::open),
    },
    Kind {
        name: remote::KIND,
        argument: None,
        members: Members::None,
        options: &["keep-alive", "reconnect"],
        open: Open::All(remote::open),
    },
    Kind {
        name: "read-only",
        argument: None,
        members: Members::One,
        options: &["from", "for"],
        open: Open::All(read_only::open),
    },
    Kind {
        name: "stall",
        argument: Some("duration"),
        members: Members::One,
        options: &["every", "one-in", "seed", "on", "from", "for"],
        open: Open::All(stall::open),
    },
    Kind {
        name: "stripe",
        argument: Some("size of a stripe"),
        members: Members::Several,
        options: &[],
        open: Open::All(stripe::open),
    },
];

/// The kinds of volumes that a program accepts: by default those of this crate.
pub struct Kinds {
    kinds: Vec<Kind>,
    journal: Option<Arc<JournalFile>>,
}

impl Default for Kinds {
    fn default() -> Kinds {
        Kinds { kinds: STANDARD.into(), journal: None }
    }
}

impl Kind {
    /// Returns a kind of volumes without members: `NAME:TEXT,OPTION=VALUE`. Besides `options`, it accepts `ro`, `nsid`,
    /// `uuid`, and `group`. `open` gets the whole specification, whose source is [`Source::Nested`].
    pub fn leaf(
        name: &'static str,
        options: &'static [&'static str],
        open: impl Fn(&VolumeSpec) -> Result<Arc<dyn Volume>, OpenError> + Send + Sync + 'static,
    ) -> Kind {
        Kind { name, argument: None, members: Members::None, options, open: Open::Added(Box::new(open)) }
    }
}

impl Kinds {
    /// Adds a kind.
    pub fn add(&mut self, kind: Kind) {
        self.kinds.push(kind);
    }

    /// Sets the journal of remote volumes: their writes wait for the associations of earlier processes that it has.
    pub fn set_journal(&mut self, journal: Arc<JournalFile>) {
        self.journal = Some(journal);
    }

    /// Parses a specification of any volume.
    ///
    /// # Errors
    /// The part that is invalid.
    pub fn parse(&self, text: &str) -> Result<VolumeSpec, SpecError> {
        let spec = self.parse_at(text, 0)?;
        let mut names = HashSet::new();
        for leaf in self.leaves(&spec)? {
            // The name has no options, which could hide that two leaves are the same.
            if self.is_named_by_text(&leaf) && !names.insert(leaf.name()) {
                let reason = format!("{} is in it twice", leaf.name());
                return Err(SpecError::new(text, reason, "use different volumes"));
            }
        }
        Ok(spec)
    }

    /// Whether leaves with the same name have the same blocks. Options of an added kind can name another store, so
    /// volumes with several members compare [`Volume::stores`] also.
    fn is_named_by_text(&self, leaf: &VolumeSpec) -> bool {
        match &leaf.source {
            Source::Memory { .. } | Source::Null { .. } => false,
            Source::Path { .. } => true,
            Source::Nested { kind, .. } => {
                self.find(kind).is_some_and(|kind| !matches!(kind.open, Open::Added(_)))
            }
        }
    }

    /// Parses the specification of a member at this depth.
    fn parse_at(&self, text: &str, depth: usize) -> Result<VolumeSpec, SpecError> {
        if depth > MAX_DEPTH {
            let start: String = text.chars().take(SHOWN_CHARS).collect();
            return Err(SpecError::new(
                &format!("{start}…"),
                format!("volumes are nested more than {MAX_DEPTH} deep"),
                "use fewer levels",
            ));
        }
        let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.name).collect();
        let spec = spec::parse_with(text, &kinds)?;
        if let Some(nested) = self.take_apart(&spec, depth)? {
            nested.check_options(&spec, text)?;
        }
        Ok(spec)
    }

    fn find(&self, name: &str) -> Option<&Kind> {
        self.kinds.iter().find(|kind| kind.name == name)
    }

    /// Returns whether a word before a colon is a kind of volumes.
    pub fn has(&self, word: &str) -> bool {
        spec::LEAF_KINDS.contains(&word) || self.find(word).is_some()
    }

    /// Opens the volume specified by `spec`, and all members of it.
    ///
    /// # Errors
    /// The volume that cannot be opened.
    pub fn open(&self, spec: &VolumeSpec) -> Result<Arc<dyn Volume>, OpenError> {
        let name = spec.name();
        let nested =
            self.take_apart(spec, 0).map_err(|error| OpenError::invalid(&name, error.to_string(), ""))?;
        let Some(nested) = nested else { return isolane_volume::open(spec) };
        let Source::Nested { options, .. } = spec.source.clone() else {
            unreachable!("a nested volume has a nested source")
        };
        let members = nested
            .members
            .iter()
            .map(|member| inherited_memory::open_part(self.count_memory(member), || self.open(member)));
        let mut parts = Parts {
            kind: nested.kind.name,
            name,
            argument: nested.argument,
            members: Vec::new(),
            options,
            uuid: spec.uuid,
            group: spec.group.clone(),
            journal: self.journal.clone(),
        };
        let volume = match &nested.kind.open {
            Open::All(open) => {
                parts.members = members.collect::<Result<_, _>>()?;
                open(parts)?
            }
            Open::Any(open) => open(parts, members.collect())?,
            Open::Added(open) => open(spec)?,
        };
        if !spec.read_only || volume.info().read_only {
            return Ok(volume);
        }
        let identity = volume.identity().clone();
        Ok(Arc::new(read_only::ReadOnly::new(spec.name(), identity, volume)))
    }

    fn count_memory(&self, spec: &VolumeSpec) -> usize {
        let leaves = self.leaves(spec).unwrap_or_default();
        leaves.iter().filter(|leaf| matches!(leaf.source, Source::Memory { .. })).count()
    }

    /// Returns the specifications of the volumes that hold the data of `spec`: itself, or the innermost members.
    ///
    /// # Errors
    /// The part that is invalid.
    pub fn leaves(&self, spec: &VolumeSpec) -> Result<Vec<VolumeSpec>, SpecError> {
        let Some(nested) = self.take_apart(spec, 0)? else { return Ok(vec![spec.clone()]) };
        if nested.kind.members == Members::None {
            return Ok(vec![spec.clone()]);
        }
        let leaves: Result<Vec<_>, _> = nested.members.iter().map(|member| self.leaves(member)).collect();
        Ok(leaves?.concat())
    }

    /// Returns the volume with paths from the root, also those of members and options, for another working directory.
    ///
    /// # Errors
    /// The part that is invalid, or a path that has none from the root.
    pub fn with_absolute_paths(&self, spec: &VolumeSpec) -> Result<VolumeSpec, SpecError> {
        let mut spec = spec.clone();
        // Members get `ro` again when the text is parsed.
        let writable = VolumeSpec { read_only: false, ..spec.clone() };
        let nested = self.take_apart(&writable, 0)?;
        match &mut spec.source {
            Source::Path { path, .. } => {
                let name = path.display().to_string();
                *path = absolute(&*path).map_err(|error| no_absolute_path(&name, &error))?;
            }
            Source::Nested { text, options, .. } => {
                for (_, value) in options.iter_mut().filter(|(key, _)| PATH_OPTIONS.contains(&key.as_str())) {
                    let path = absolute(&*value).map_err(|error| no_absolute_path(value, &error))?;
                    *value = path.display().to_string();
                }
                if let Some(changed) = nested.map(|nested| self.absolute_text(&nested)).transpose()?.flatten()
                {
                    *text = changed;
                }
            }
            Source::Memory { .. } | Source::Null { .. } => {}
        }
        Ok(spec)
    }

    /// Returns argument and members with paths from the root, or `None` if all have such paths already.
    fn absolute_text(&self, nested: &Nested<'_>) -> Result<Option<String>, SpecError> {
        let members = nested.members.iter().map(|member| self.with_absolute_paths(member));
        let members: Vec<VolumeSpec> = members.collect::<Result<_, _>>()?;
        if members == nested.members {
            return Ok(None);
        }
        let argument = nested.kind.argument.map_or(String::new(), |_| format!("{}:", nested.argument));
        let members: Vec<String> = members.iter().map(|member| format!("({})", member.to_text())).collect();
        Ok(Some(argument + &members.join(";")))
    }

    /// Returns `None` for a leaf volume of `isolane-volume`.
    fn take_apart(&self, spec: &VolumeSpec, depth: usize) -> Result<Option<Nested<'_>>, SpecError> {
        let Source::Nested { kind, text, .. } = &spec.source else { return Ok(None) };
        let fail = |reason: String, remedy| Err(SpecError::new(&spec.name(), reason, remedy));
        let Some(kind) = self.find(kind) else {
            return fail(format!("unknown kind {kind:?}"), "name a file as ./NAME");
        };
        let (argument, text) = match (kind.argument, text.split_once(':')) {
            (None, _) => ("", text.as_str()),
            (Some(_), Some(parts)) => parts,
            (Some(meaning), None) => {
                return fail(format!("no {meaning}"), "write it before the members, followed by a colon");
            }
        };
        let Some(members) = split_members(text, kind.members) else {
            return fail("unbalanced parentheses".to_owned(), "close each parenthesis");
        };
        let members = members.into_iter().map(|text| self.parse_at(text, depth + 1));
        let mut members: Vec<VolumeSpec> = members.collect::<Result<_, _>>()?;
        if members.iter().any(|member| member.nsid.is_some()) {
            return fail(
                "a member has a namespace ID".to_owned(),
                "write nsid= after the closing parenthesis",
            );
        }
        members.iter_mut().for_each(|member| member.read_only |= spec.read_only);
        Ok(Some(Nested { kind, argument: argument.to_owned(), members }))
    }
}

/// A specification of a nested volume, taken apart.
struct Nested<'a> {
    kind: &'a Kind,
    argument: String,
    members: Vec<VolumeSpec>,
}

impl Nested<'_> {
    fn check_options(&self, spec: &VolumeSpec, text: &str) -> Result<(), SpecError> {
        let Source::Nested { options, .. } = &spec.source else { return Ok(()) };
        let unknown = options.iter().find(|(key, _)| !self.kind.options.contains(&key.as_str()));
        for (position, (key, _)) in options.iter().enumerate() {
            if options[..position].iter().any(|(other, _)| other == key) {
                return Err(SpecError::new(text, format!("option {key} is there twice"), "write it once"));
            }
        }
        let flag = [(spec.write_through, "write-through"), (spec.buffered, "buffered")];
        let flag = flag.iter().find(|(is_set, _)| *is_set).map(|(_, name)| *name);
        match unknown.map(|(key, _)| key.as_str()).or(flag) {
            None => Ok(()),
            Some(key) => {
                let reason = format!("{} has no option {key:?}", self.kind.name);
                let remedy = match self.kind.members {
                    Members::None => format!("use {}=", self.kind.options.join("=, ")),
                    Members::One | Members::Several => format!("give it to members, as in (disk.img,{key}…)"),
                };
                Err(SpecError::new(text, reason, remedy))
            }
        }
    }
}

fn no_absolute_path(path: &str, error: &std::io::Error) -> SpecError {
    SpecError::new(path, format!("no path from the root ({error})"), "write the path from the root")
}

/// Splits at semicolons outside of parentheses, and removes the parentheses around a member. Returns `None` if the
/// parentheses are unbalanced.
fn split_members(text: &str, count: Members) -> Option<Vec<&str>> {
    if count == Members::None {
        return Some(Vec::new());
    }
    let (mut members, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, char) in text.char_indices() {
        match char {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            ';' if depth == 0 && count == Members::Several => {
                members.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    members.push(&text[start..]);
    let inner = |member: &str| Some(member.strip_prefix('(')?.strip_suffix(')')?.len());
    let strip = |member| inner(member).map_or(member, |len| &member[1..=len]);
    (depth == 0).then(|| members.into_iter().map(strip).collect())
}

/// Options whose values are paths of files: the bitmap of a mirror, and the login of a Ceph cluster.
const PATH_OPTIONS: [&str; 3] = ["bitmap", "conf", "keyring"];
/// Maximum number of volumes around another.
const MAX_DEPTH: usize = 16;
/// Characters of a specification in the error about its depth.
const SHOWN_CHARS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<VolumeSpec, SpecError> {
        Kinds::default().parse(text)
    }

    fn leaves(spec: &VolumeSpec) -> Result<Vec<VolumeSpec>, SpecError> {
        Kinds::default().leaves(spec)
    }

    #[test]
    fn opens_added_kinds_also_as_members() {
        let mut kinds = Kinds::default();
        kinds.add(Kind::leaf("twin", &["conf"], |spec| {
            let mut inner = spec.clone();
            inner.source = Source::Memory { bytes: 1 << 20 };
            isolane_volume::open(&inner)
        }));
        assert!(kinds.has("twin") && kinds.has("mem") && kinds.has("stripe") && !kinds.has("other"));
        assert_eq!(kinds.open(&kinds.parse("twin:a/b,conf=f").unwrap()).unwrap().info().bytes(), 1 << 20);
        // Options of an added kind can name different stores.
        let spec = kinds.parse("stripe:64k:(twin:a/b,conf=f);(twin:a/b,conf=g,ro)").unwrap();
        assert_eq!(kinds.leaves(&spec).unwrap()[1].name(), "twin:a/b");
        let stripe = kinds.open(&spec).unwrap();
        assert!(stripe.info().bytes() == 2 << 20 && stripe.info().read_only);
        let error = kinds.parse("twin:a/b,pool=f").unwrap_err().to_string();
        assert!(error.contains("twin has no option \"pool\"; use conf="), "{error}");
        assert!(parse("twin:a").unwrap_err().to_string().contains("unknown kind"));
    }

    #[test]
    fn limits_depth() {
        let nest = |depth: usize| format!("{}./é.img", "read-only:".repeat(depth));
        assert_eq!(leaves(&parse(&nest(16)).unwrap()).unwrap().len(), 1);
        let groups = "stripe:4k:é;(".repeat(10_000) + &")".repeat(10_000);
        for text in [nest(17), nest(10_000), groups] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains("more than 16 deep; use fewer levels") && error.len() < 300, "{error}");
        }
    }

    #[test]
    fn rejects_member_that_is_there_twice() {
        let remote = "nvme+tcp://h/nqn.2014-08.org.example:disk";
        for text in [
            format!("stripe:64k:{remote};({remote},uuid=1b4e28ba-2fa1-4d2b-883f-0016d3cca427)"),
            format!("stripe:64k:{remote};log:(delay:1ms:{remote})"),
            "mirror:(a.img,size=1M);a.img,bitmap=c".to_owned(),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains("is in it twice; use different volumes"), "{text}: {error}");
        }
        assert!(parse("stripe:64k:mem:1M;mem:1M").is_ok());
    }

    #[test]
    fn parses_nested_members_with_options() {
        let spec = parse("stripe:64k:(mem:1M,block-size=4096);(read-only:mem:1M),nsid=7,ro").unwrap();
        assert_eq!((spec.nsid, spec.read_only), (Some(7), true));
        let leaves = leaves(&spec).unwrap();
        assert_eq!(leaves.len(), 2);
        assert!(leaves[0].block_size == 4096 && leaves[0].read_only);
        assert_eq!(
            parse("./stripe:1").unwrap().source,
            Source::Path { path: "./stripe:1".into(), size: None }
        );
    }

    #[test]
    fn makes_paths_absolute() {
        let kinds = Kinds::default();
        let dir = std::env::current_dir().unwrap().display().to_string();
        for (text, expected) in [
            ("a,,b.img,size=1M,ro", "DIR/a,,b.img,size=1M,ro"),
            ("stripe:64k:a;(b,,c,buffered),ro,group=g", "stripe:64k:(DIR/a);(DIR/b,,c,buffered),ro,group=g"),
            ("delay:1ms:stripe:64k:mem:1M;a,on=read", "delay:1ms:(stripe:64k:(mem:1M);(DIR/a)),on=read"),
            ("mirror:(/a,ro);mem:1M,bitmap=m,,n", "mirror:(/a,ro);mem:1M,bitmap=DIR/m,,n"),
            ("read-only:/a", "read-only:/a"),
            ("nvme+tcp://h/nqn.2014-08.org.example:a", "nvme+tcp://h/nqn.2014-08.org.example:a"),
        ] {
            let found = kinds.with_absolute_paths(&parse(text).unwrap()).unwrap();
            let expected = parse(&expected.replace("DIR", &dir.replace(',', ",,"))).unwrap();
            assert_eq!(found, expected, "{text}");
            assert_eq!(parse(&found.to_text()).unwrap(), found, "{text}");
        }
    }

    #[test]
    fn rejects_invalid_nested_specifications() {
        for (text, reason) in [
            ("stripe:64k", "no size of a stripe"),
            ("stripe:64k:mem:1M;", "empty"),
            ("stripe:64k:(mem:1M;mem:1M", "unbalanced"),
            ("stripe:64k:mem:1M;mem:1M,size=1G", "no option \"size\""),
            ("stripe:64k:mem:1M;mem:1M,buffered", "no option \"buffered\""),
            ("stripe:64k:(mem:1M,nsid=3);mem:1M", "namespace ID"),
            ("fault:2:mem:1M,on=read,on=write", "option on is there twice"),
            ("read-only:mem:1", "not a multiple"),
            ("raid5:a;b,size=1G", "unknown kind \"raid5\"; use "),
            ("mirror:a;Stripe:64k:a", "unknown kind \"Stripe\"; use stripe:, or"),
            ("nvme-tcp://h/nqn,size=1G", "unknown kind \"nvme-tcp\"; use nvme+tcp:, or"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
