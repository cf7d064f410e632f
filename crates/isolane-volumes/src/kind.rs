//! Kinds of nested volumes: their syntax, and how they are opened.

use std::sync::Arc;

use isolane_volume::spec::{self, Source, SpecError, VolumeSpec};
use isolane_volume::{OpenError, Volume};

use crate::parts::Parts;
use crate::{delay, fault, log, mirror, read_only, remote, stall, stripe};

/// A kind of nested volume: `NAME:ARGUMENT:MEMBER;MEMBER…,OPTION=VALUE`. A filter has one member, a remote volume none.
struct Kind {
    name: &'static str,
    /// Meaning of the argument, if the kind has one.
    argument: Option<&'static str>,
    members: Members,
    /// Options that it accepts besides `ro`, `nsid`, and `uuid`.
    options: &'static [&'static str],
    open: Open,
}

/// Opens a volume of a kind.
enum Open {
    /// From all of its members.
    All(fn(Parts) -> Opened),
    /// From the members that can be opened, and the errors of the others.
    Any(fn(Parts, Vec<Opened>) -> Opened),
}

type Opened = Result<Arc<dyn Volume>, OpenError>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Members {
    /// The text is an address.
    None,
    One,
    Several,
}

const KINDS: &[Kind] = &[
    Kind {
        name: "delay",
        argument: Some("duration"),
        members: Members::One,
        options: &[],
        open: Open::All(delay::open),
    },
    Kind {
        name: "fault",
        argument: Some("number of requests"),
        members: Members::One,
        options: &["on"],
        open: Open::All(fault::open),
    },
    Kind { name: "log", argument: None, members: Members::One, options: &[], open: Open::All(log::open) },
    Kind {
        name: "mirror",
        argument: None,
        members: Members::Several,
        options: &["bitmap", "create", "degraded", "keep"],
        open: Open::Any(mirror::open),
    },
    Kind {
        name: "nvme+tcp",
        argument: None,
        members: Members::None,
        options: &[],
        open: Open::All(remote::open),
    },
    Kind {
        name: "read-only",
        argument: None,
        members: Members::One,
        options: &[],
        open: Open::All(read_only::open),
    },
    Kind {
        name: "stall",
        argument: Some("duration"),
        members: Members::One,
        options: &["every"],
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

pub(crate) fn parse(text: &str) -> Result<VolumeSpec, SpecError> {
    let kinds: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
    let spec = spec::parse_with(text, &kinds)?;
    if let Some(nested) = Nested::parse(&spec)? {
        nested.check_options(&spec, text)?;
    }
    Ok(spec)
}

pub(crate) fn open(spec: &VolumeSpec) -> Result<Arc<dyn Volume>, OpenError> {
    let name = spec.name();
    let nested =
        Nested::parse(spec).map_err(|error| OpenError::new(&name, error.to_string(), "correct it"))?;
    let Some(nested) = nested else { return isolane_volume::open(spec) };
    let (Source::Nested { options, .. }, uuid) = (spec.source.clone(), spec.uuid) else {
        unreachable!("a nested volume has a nested source")
    };
    let members = nested.members.iter().map(open);
    let mut parts = Parts { name, argument: nested.argument, members: Vec::new(), options, uuid };
    let volume = match nested.kind.open {
        Open::All(open) => {
            parts.members = members.collect::<Result<_, _>>()?;
            open(parts)?
        }
        Open::Any(open) => open(parts, members.collect())?,
    };
    if !spec.read_only || volume.info().read_only {
        return Ok(volume);
    }
    let identity = volume.identity().clone();
    Ok(Arc::new(read_only::ReadOnly::new(spec.name(), identity, volume)))
}

pub(crate) fn leaves(spec: &VolumeSpec) -> Result<Vec<VolumeSpec>, SpecError> {
    let Some(nested) = Nested::parse(spec)? else { return Ok(vec![spec.clone()]) };
    let leaves: Result<Vec<_>, _> = nested.members.iter().map(leaves).collect();
    Ok(leaves?.concat())
}

/// A specification of a nested volume, taken apart.
struct Nested {
    kind: &'static Kind,
    argument: String,
    members: Vec<VolumeSpec>,
}

impl Nested {
    /// Returns `None` for a leaf volume.
    fn parse(spec: &VolumeSpec) -> Result<Option<Nested>, SpecError> {
        let Source::Nested { kind, text, .. } = &spec.source else { return Ok(None) };
        let fail = |reason: String, remedy| Err(SpecError::new(&spec.name(), reason, remedy));
        let Some(kind) = KINDS.iter().find(|known| known.name == kind) else {
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
        let mut members: Vec<VolumeSpec> = members.into_iter().map(parse).collect::<Result<_, _>>()?;
        if members.iter().any(|member| member.nsid.is_some()) {
            return fail(
                "a member has a namespace ID".to_owned(),
                "write nsid= after the closing parenthesis",
            );
        }
        members.iter_mut().for_each(|member| member.read_only |= spec.read_only);
        Ok(Some(Nested { kind, argument: argument.to_owned(), members }))
    }

    fn check_options(&self, spec: &VolumeSpec, text: &str) -> Result<(), SpecError> {
        let Source::Nested { options, .. } = &spec.source else { return Ok(()) };
        let unknown = options.iter().find(|(key, _)| !self.kind.options.contains(&key.as_str()));
        let flag = [(spec.write_through, "write-through"), (spec.buffered, "buffered")];
        let flag = flag.iter().find(|(is_set, _)| *is_set).map(|(_, name)| *name);
        match unknown.map(|(key, _)| key.as_str()).or(flag) {
            None => Ok(()),
            Some(key) => {
                let reason = format!("{} has no option {key:?}", self.kind.name);
                let remedy = format!("give it to members, as in (disk.img,{key}…)");
                Err(SpecError::new(text, reason, remedy))
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn rejects_invalid_nested_specifications() {
        for (text, reason) in [
            ("stripe:64k", "no size of a stripe"),
            ("stripe:64k:mem:1M;", "empty"),
            ("stripe:64k:(mem:1M;mem:1M", "unbalanced"),
            ("stripe:64k:mem:1M;mem:1M,size=1G", "no option \"size\""),
            ("stripe:64k:mem:1M;mem:1M,buffered", "no option \"buffered\""),
            ("stripe:64k:(mem:1M,nsid=3);mem:1M", "namespace ID"),
            ("read-only:mem:1", "not a multiple"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
