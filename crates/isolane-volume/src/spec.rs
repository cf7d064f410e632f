//! Volume specifications on the command line: `mem:1G`, `null:1T`, or a path, with options after
//! commas.
//!
//! ```
//! let spec = isolane_volume::spec::parse("/srv/disk.img,size=10G,block-size=4096,ro")?;
//! assert!(spec.read_only && spec.block_size == 4096);
//! # Ok::<(), isolane_volume::spec::SpecError>(())
//! ```
//!
//! | option | meaning |
//! |---|---|
//! | `size=10G` | create a sparse file of this size if none exists; an existing one must have this size; `G` is 1024³, `GB` is 1000³ |
//! | `block-size=512`, `block-size=4096` | block size in bytes (default: 512) |
//! | `ro` | read-only |
//! | `nsid=N` | namespace ID (default: the next free one) |
//! | `uuid=U` | identity for this run, instead of the volume's |
//! | `group=NAME` | peers: volumes of one group are expected to behave alike, and statistics compare them |
//! | `write-through` | every write is durable on completion: no volatile cache |
//! | `buffered` | use the page cache even if direct I/O is possible |
//!
//! Write a comma in a path twice, and a path with a colon in its first part as `./a:b`.

mod show;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use crate::info::BLOCK_SIZES;

/// Specification of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeSpec {
    /// Location of the blocks.
    pub source: Source,
    /// Block size in bytes: 512 or 4,096.
    pub block_size: u32,
    /// Writes are rejected.
    pub read_only: bool,
    /// Requested namespace ID.
    pub nsid: Option<u32>,
    /// Requested identity.
    pub uuid: Option<Uuid>,
    /// Name of a group of volumes that are expected to behave alike.
    pub group: Option<String>,
    /// Every write is durable when it completes.
    pub write_through: bool,
    /// Use the page cache even if direct I/O is possible.
    pub buffered: bool,
}

/// Location of a volume's blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// In memory.
    Memory {
        /// Size in bytes.
        bytes: u64,
    },
    /// Null: reads zeroes, drops writes.
    Null {
        /// Size in bytes.
        bytes: u64,
    },
    /// In a regular file or a block device.
    Path {
        /// Path of the file or device.
        path: PathBuf,
        /// Size of a new file in bytes, if it does not exist.
        size: Option<u64>,
    },
    /// In other volumes. Opened by the crate that knows the kind, such as `isolane-volumes`.
    Nested {
        /// Kind, such as `stripe`.
        kind: String,
        /// Text after the kind and its colon, without options.
        text: String,
        /// Options of the kind.
        options: Vec<(String, String)>,
    },
}

/// An invalid specification: text, reason, and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid volume {text:?}: {reason}; {remedy}")]
pub struct SpecError {
    text: String,
    reason: String,
    remedy: String,
}

impl SpecError {
    /// Creates an error from a text and the reason and remedy for it.
    pub fn new(text: &str, reason: impl Into<String>, remedy: impl Into<String>) -> SpecError {
        SpecError { text: text.to_owned(), reason: reason.into(), remedy: remedy.into() }
    }

    /// Returns the cause.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the remedy, as an imperative.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }
}

/// An invalid size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid size {text:?}: {reason}; use a whole number with k, M, G, or T (powers of 1024) or kB, MB, \
     GB, or TB (powers of 1000), such as 10G"
)]
pub struct SizeError {
    text: String,
    reason: &'static str,
}

impl VolumeSpec {
    /// Returns the specification of a volume without options.
    pub fn new(source: Source) -> VolumeSpec {
        VolumeSpec {
            source,
            block_size: BLOCK_SIZES[0],
            read_only: false,
            nsid: None,
            uuid: None,
            group: None,
            write_through: false,
            buffered: false,
        }
    }

    /// Returns the name of the volume for log lines.
    pub fn name(&self) -> String {
        match &self.source {
            Source::Memory { bytes } => format!("mem:{}", format_size(*bytes)),
            Source::Null { bytes } => format!("null:{}", format_size(*bytes)),
            Source::Path { path, .. } => path.display().to_string(),
            Source::Nested { kind, text, .. } => format!("{kind}:{text}"),
        }
    }
}

impl FromStr for VolumeSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<VolumeSpec, SpecError> {
        parse(text)
    }
}

/// Parses a specification.
pub fn parse(text: &str) -> Result<VolumeSpec, SpecError> {
    parse_with(text, &[])
}

/// Parses a specification, which can also be of one of the given kinds of nested volumes: `KIND:…`. Parentheses in
/// it protect commas.
pub fn parse_with(text: &str, kinds: &[&str]) -> Result<VolumeSpec, SpecError> {
    parse_fields(text, kinds).map_err(|error| SpecError { text: text.to_owned(), ..error })
}

/// Errors have no text yet; [`parse_with`] adds it.
fn parse_fields(text: &str, kinds: &[&str]) -> Result<VolumeSpec, SpecError> {
    let kind = kinds.iter().find(|kind| text.strip_prefix(**kind).is_some_and(|rest| rest.starts_with(':')));
    let mut fields = split_fields(text, kind.is_some()).into_iter();
    let source = fields.next().unwrap_or_default();
    if kind.is_none() {
        reject_unknown_kind(&source, kinds)?;
    }
    let mut spec = VolumeSpec::new(parse_source(&source, kind)?);
    for option in fields {
        parse_option(&mut spec, &option)?;
    }
    check_whole_blocks(&spec)?;
    Ok(spec)
}

/// Parses a size in bytes: a whole number, with `k`, `M`, `G`, or `T` (also `KiB`, `MiB`, …) for
/// powers of 1024, or `kB`, `MB`, `GB`, or `TB` for powers of 1000.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let fail = |reason| SizeError { text: text.to_owned(), reason };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(fail("no whole number"));
    }
    if text.ends_with('b') {
        return Err(fail("b stands for bits"));
    }
    let unit = text[digits.len()..].to_ascii_lowercase();
    let (prefix, base) = match unit.strip_suffix('b') {
        None => (unit.as_str(), 1024_u64),
        Some(prefix) => prefix.strip_suffix('i').map_or((prefix, 1000), |prefix| (prefix, 1024)),
    };
    let power = match prefix {
        "" if unit.len() < 2 => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(fail("unknown unit")),
    };
    let number: u64 = digits.parse().map_err(|_| fail("number too large"))?;
    number.checked_mul(base.pow(power)).ok_or_else(|| fail("number too large"))
}

/// Formats a size for [`parse_size`].
pub fn format_size(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "k")];
    let fitting = units.into_iter().find(|(shift, _)| bytes != 0 && bytes.is_multiple_of(1 << shift));
    fitting.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

fn invalid(reason: impl Into<String>, remedy: impl Into<String>) -> SpecError {
    SpecError::new("", reason, remedy)
}

/// Splits at single commas; a double comma stands for a comma. Parentheses protect commas if `has_groups`.
fn split_fields(text: &str, has_groups: bool) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut chars = text.chars().peekable();
    let mut depth = 0_usize;
    while let Some(char) = chars.next() {
        match char {
            '(' if has_groups => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if char == ',' && depth == 0 && chars.next_if_eq(&',').is_none() {
            fields.push(String::new());
        } else if let Some(field) = fields.last_mut() {
            field.push(char);
        }
    }
    fields
}

/// Rejects a word before a colon that is not a kind of volumes: it would become the name of a file.
fn reject_unknown_kind(text: &str, kinds: &[&str]) -> Result<(), SpecError> {
    let is_word =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "+-_".contains(c));
    let known = || LEAF_KINDS.iter().chain(kinds);
    match text.split_once(':') {
        Some((word, _)) if is_word(word) && known().all(|kind| *kind != word) => {
            let lower = word.to_ascii_lowercase();
            let similarity = |kind: &&&str| strsim::jaro_winkler(&lower, kind);
            let nearest = known().max_by(|one, other| similarity(one).total_cmp(&similarity(other)));
            let nearest = nearest.filter(|kind| similarity(kind) > MIN_SIMILARITY);
            let known = nearest
                .map_or_else(|| known().copied().collect::<Vec<_>>().join(":, "), |kind| (*kind).to_owned());
            let reason = format!("unknown kind {word:?}");
            Err(invalid(reason, format!("use {known}:, or write ./{text} for a file of that name")))
        }
        _ => Ok(()),
    }
}

fn parse_source(text: &str, kind: Option<&&str>) -> Result<Source, SpecError> {
    if let Some(kind) = kind {
        let text = text[kind.len() + 1..].to_owned();
        return Ok(Source::Nested { kind: (*kind).to_owned(), text, options: Vec::new() });
    }
    if let Some(size) = text.strip_prefix("mem:") {
        return Ok(Source::Memory { bytes: parse_sized(size, "mem:")? });
    }
    if let Some(size) = text.strip_prefix("null:") {
        return Ok(Source::Null { bytes: parse_sized(size, "null:")? });
    }
    if text.is_empty() {
        return Err(invalid("empty", "use mem:1G, null:1T, or a path"));
    }
    Ok(Source::Path { path: Path::new(text).to_owned(), size: None })
}

fn parse_sized(text: &str, example: &str) -> Result<u64, SpecError> {
    match parse_size(text) {
        Ok(0) => Err(invalid("size is 0", format!("use at least one block, such as {example}1M"))),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(invalid(
            format!("invalid size {text:?} ({})", error.reason),
            format!("use a whole number with k, M, G, or T, such as {example}1G"),
        )),
    }
}

fn parse_option(spec: &mut VolumeSpec, option: &str) -> Result<(), SpecError> {
    if let (Source::Nested { options, .. }, Some((key, value))) = (&mut spec.source, option.split_once('='))
        && !["nsid", "uuid", "group"].contains(&key)
    {
        options.push((key.to_owned(), value.to_owned()));
        return Ok(());
    }
    match option.split_once('=').map_or((option, None), |(key, value)| (key, Some(value))) {
        ("ro", None) => spec.read_only = true,
        ("write-through", None) => spec.write_through = true,
        ("buffered", None) => spec.buffered = true,
        ("size", Some(value)) => apply_size(spec, value)?,
        ("block-size", Some(value)) => spec.block_size = parse_block_size(value)?,
        ("nsid", Some(value)) => spec.nsid = Some(parse_nsid(value)?),
        ("uuid", Some(value)) => spec.uuid = Some(parse_uuid(value)?),
        ("group", Some(value)) => spec.group = Some(parse_group(value)?),
        (key @ ("ro" | "write-through" | "buffered"), Some(_)) => {
            return Err(invalid(format!("option {key} takes no value"), format!("use {key} alone")));
        }
        (key @ ("size" | "block-size" | "nsid" | "uuid" | "group"), None) => {
            return Err(invalid(format!("option {key} has no value"), format!("use {key}=…")));
        }
        (key, _) => {
            let reason = format!("unknown option {key:?}");
            return Err(invalid(reason, format!("use {OPTIONS}; write a comma in a path twice")));
        }
    }
    Ok(())
}

fn apply_size(spec: &mut VolumeSpec, value: &str) -> Result<(), SpecError> {
    let bytes = parse_sized(value, "size=")?;
    match &mut spec.source {
        Source::Path { size, .. } => *size = Some(bytes),
        Source::Memory { .. } | Source::Null { .. } | Source::Nested { .. } => {
            return Err(invalid(
                "size= applies to files only",
                "write the size after the colon, such as mem:1G",
            ));
        }
    }
    Ok(())
}

fn parse_block_size(value: &str) -> Result<u32, SpecError> {
    let bytes = parse_size(value).ok().and_then(|bytes| u32::try_from(bytes).ok());
    bytes.filter(|bytes| BLOCK_SIZES.contains(bytes)).ok_or_else(|| {
        invalid(format!("unsupported block size {value:?}"), "use block-size=512 or block-size=4096")
    })
}

fn parse_nsid(value: &str) -> Result<u32, SpecError> {
    // NVMe Base: 0 is invalid, FFFFFFFFh addresses all namespaces, FFFFFFFEh is reserved.
    value.parse().ok().filter(|nsid| (1..=MAX_NSID).contains(nsid)).ok_or_else(|| {
        invalid(format!("invalid namespace ID {value:?}"), format!("use a number from 1 to {MAX_NSID}"))
    })
}

fn parse_uuid(value: &str) -> Result<Uuid, SpecError> {
    let uuid = Uuid::parse_str(value).ok().filter(|uuid| !uuid.is_nil());
    uuid.ok_or_else(|| {
        let remedy = "use a UUID such as uuid=1b4e28ba-2fa1-4d2b-883f-0016d3cca427";
        invalid(format!("invalid UUID {value:?}"), remedy)
    })
}

fn parse_group(value: &str) -> Result<String, SpecError> {
    let is_valid =
        !value.is_empty() && value.len() <= MAX_GROUP_BYTES && !value.chars().any(char::is_control);
    is_valid.then(|| value.to_owned()).ok_or_else(|| {
        let remedy =
            format!("use 1 to {MAX_GROUP_BYTES} bytes without control characters, as in group=drives");
        invalid(format!("invalid group {value:?}"), remedy)
    })
}

fn check_whole_blocks(spec: &VolumeSpec) -> Result<(), SpecError> {
    let bytes = match spec.source {
        Source::Memory { bytes } | Source::Null { bytes } => bytes,
        Source::Path { size, .. } => size.unwrap_or(0),
        Source::Nested { .. } => 0,
    };
    if bytes.is_multiple_of(u64::from(spec.block_size)) {
        return Ok(());
    }
    let reason = format!("{bytes} bytes is not a multiple of the block size {}", spec.block_size);
    Err(invalid(reason, "use a multiple of the block size, such as a size in k, M, G, or T"))
}

/// Kinds of volumes without members that have a word before a colon.
pub const LEAF_KINDS: [&str; 2] = ["mem", "null"];
/// Similarity of a mistyped kind, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.7;

const OPTIONS: &str = "size=, block-size=, ro, nsid=, uuid=, group=, write-through, buffered";
const MAX_GROUP_BYTES: usize = 64;
/// Maximum namespace ID.
pub const MAX_NSID: u32 = 1024;

#[cfg(test)]
mod tests;
