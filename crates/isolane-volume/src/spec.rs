//! How a volume is described on a command line: `mem:1G`, `null:1T`, or a path, with options after commas.
//!
//! ```
//! let spec = isolane_volume::spec::parse("/srv/disk.img,size=10G,block-size=4096,ro")?;
//! assert!(spec.read_only && spec.block_size == 4096);
//! # Ok::<(), isolane_volume::spec::SpecError>(())
//! ```
//!
//! | option | meaning |
//! |---|---|
//! | `size=10G` | create a sparse file of that size if there is none; an existing one must have that size; `G` is 1024³, `GB` is 1000³ |
//! | `block-size=512`, `block-size=4096` | bytes in a block; 512 unless told |
//! | `ro` | nothing can be written |
//! | `nsid=N` | the namespace id; the next free one unless told |
//! | `uuid=U` | the identity for this run, instead of the volume's own |
//! | `write-through` | every write is durable when it completes: no volatile cache |
//! | `buffered` | use the page cache even where direct I/O would be possible |
//!
//! A comma in a path is written twice. A file that is named like `mem:1G` is given as `./mem:1G`.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use uuid::Uuid;

use crate::volume::BLOCK_SIZES;

/// A volume to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Where the blocks are.
    pub source: Source,
    /// Bytes in a block: 512 or 4,096.
    pub block_size: u32,
    /// Nothing can be written.
    pub read_only: bool,
    /// The namespace id asked for.
    pub nsid: Option<u32>,
    /// The identity asked for.
    pub uuid: Option<Uuid>,
    /// Every write is durable when it completes.
    pub write_through: bool,
    /// The page cache is used even where direct I/O would be possible.
    pub is_buffered: bool,
}

/// Where the blocks of a volume are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In memory.
    Memory {
        /// How much.
        bytes: u64,
    },
    /// Nowhere.
    Null {
        /// How much.
        bytes: u64,
    },
    /// In a regular file or a block device.
    Path {
        /// Which.
        path: PathBuf,
        /// Bytes of the file to create if there is none.
        size: Option<u64>,
    },
}

/// Why a description was not understood: what, why, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the volume {text:?}: {reason}; {remedy}")]
pub struct SpecError {
    text: String,
    reason: String,
    remedy: String,
}

/// Why a size was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a size: {reason}; write a whole number with k, M, G or T (powers of 1024) or with kB, MB, \
     GB or TB (powers of 1000), as in 10G"
)]
pub struct SizeError {
    text: String,
    reason: &'static str,
}

impl VolumeSpec {
    /// What to call the volume in a line of text.
    pub fn name(&self) -> String {
        match &self.source {
            Source::Memory { bytes } => format!("mem:{}", format_size(*bytes)),
            Source::Null { bytes } => format!("null:{}", format_size(*bytes)),
            Source::Path { path, .. } => path.display().to_string(),
        }
    }
}

impl FromStr for VolumeSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<VolumeSpec, SpecError> {
        parse(text)
    }
}

/// Reads a description.
pub fn parse(text: &str) -> Result<VolumeSpec, SpecError> {
    let mut fields = split_fields(text).into_iter();
    let source = parse_source(&fields.next().unwrap_or_default());
    let mut spec = VolumeSpec {
        source: source.map_err(|refusal| refusal.about(text))?,
        block_size: BLOCK_SIZES[0],
        read_only: false,
        nsid: None,
        uuid: None,
        write_through: false,
        is_buffered: false,
    };
    for option in fields {
        apply(&mut spec, &option).map_err(|refusal| refusal.about(text))?;
    }
    check_whole_blocks(&spec).map_err(|refusal| refusal.about(text))?;
    Ok(spec)
}

/// Reads a size in bytes: a whole number, with `k`, `M`, `G` or `T` (also `KiB`, `MiB`, …) for powers of 1024, or
/// `kB`, `MB`, `GB` or `TB` for powers of 1000.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let fail = |reason| SizeError { text: text.to_owned(), reason };
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(fail("there is no whole number in front"));
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
        _ => return Err(fail("the unit is not known")),
    };
    let number: u64 = digits.parse().map_err(|_| fail("the number is too large"))?;
    number.checked_mul(base.pow(power)).ok_or_else(|| fail("the number is too large"))
}

/// Writes a size the way [`parse_size`] reads it.
pub fn format_size(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "k")];
    let fitting = units.into_iter().find(|(shift, _)| bytes != 0 && bytes.is_multiple_of(1 << shift));
    fitting.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// What is wrong with a part of a description.
struct Refusal {
    reason: String,
    remedy: String,
}

impl Refusal {
    fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Refusal {
        Refusal { reason: reason.into(), remedy: remedy.into() }
    }

    fn about(self, text: &str) -> SpecError {
        SpecError { text: text.to_owned(), reason: self.reason, remedy: self.remedy }
    }
}

/// Splits at single commas; a double comma stands for a comma.
fn split_fields(text: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        if char == ',' && chars.next_if_eq(&',').is_none() {
            fields.push(String::new());
        } else if let Some(field) = fields.last_mut() {
            field.push(char);
        }
    }
    fields
}

fn parse_source(text: &str) -> Result<Source, Refusal> {
    if let Some(size) = text.strip_prefix("mem:") {
        return Ok(Source::Memory { bytes: sized(size, "mem:")? });
    }
    if let Some(size) = text.strip_prefix("null:") {
        return Ok(Source::Null { bytes: sized(size, "null:")? });
    }
    if text.is_empty() {
        return Err(Refusal::new("it names nothing to serve", "give mem:1G, null:1T or a path"));
    }
    Ok(Source::Path { path: Path::new(text).to_owned(), size: None })
}

fn sized(text: &str, example: &str) -> Result<u64, Refusal> {
    match parse_size(text) {
        Ok(0) => Err(Refusal::new("its size is 0", format!("give at least one block, as in {example}1M"))),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(Refusal::new(
            format!("{text:?} is not a size ({})", error.reason),
            format!("write a whole number with k, M, G or T, as in {example}1G"),
        )),
    }
}

fn apply(spec: &mut VolumeSpec, option: &str) -> Result<(), Refusal> {
    match option.split_once('=').map_or((option, None), |(key, value)| (key, Some(value))) {
        ("ro", None) => spec.read_only = true,
        ("write-through", None) => spec.write_through = true,
        ("buffered", None) => spec.is_buffered = true,
        ("size", Some(value)) => apply_size(spec, value)?,
        ("block-size", Some(value)) => spec.block_size = parse_block_size(value)?,
        ("nsid", Some(value)) => spec.nsid = Some(parse_nsid(value)?),
        ("uuid", Some(value)) => spec.uuid = Some(parse_uuid(value)?),
        (key @ ("ro" | "write-through" | "buffered"), Some(_)) => {
            return Err(Refusal::new(
                format!("the option {key} takes no value"),
                format!("write just {key}"),
            ));
        }
        (key @ ("size" | "block-size" | "nsid" | "uuid"), None) => {
            return Err(Refusal::new(format!("the option {key} has no value"), format!("write {key}=…")));
        }
        (key, _) => {
            let reason = format!("there is no option {key:?}");
            return Err(Refusal::new(
                reason,
                format!("options are {OPTIONS}; a comma in a path is written twice"),
            ));
        }
    }
    Ok(())
}

fn apply_size(spec: &mut VolumeSpec, value: &str) -> Result<(), Refusal> {
    let bytes = sized(value, "size=")?;
    match &mut spec.source {
        Source::Path { size, .. } => *size = Some(bytes),
        Source::Memory { .. } | Source::Null { .. } => {
            return Err(Refusal::new("size= is for files", "write the size behind the colon, as in mem:1G"));
        }
    }
    Ok(())
}

fn parse_block_size(value: &str) -> Result<u32, Refusal> {
    let bytes = parse_size(value).ok().and_then(|bytes| u32::try_from(bytes).ok());
    bytes.filter(|bytes| BLOCK_SIZES.contains(bytes)).ok_or_else(|| {
        Refusal::new(
            format!("a block size of {value:?} is not served"),
            "write block-size=512 or block-size=4096",
        )
    })
}

fn parse_nsid(value: &str) -> Result<u32, Refusal> {
    // NVMe Base: 0 is no namespace, FFFFFFFFh is all of them, FFFFFFFEh is reserved.
    value.parse().ok().filter(|nsid| (1..=NSID_MAX).contains(nsid)).ok_or_else(|| {
        Refusal::new(
            format!("{value:?} is not a namespace id"),
            format!("write a number from 1 to {NSID_MAX}"),
        )
    })
}

fn parse_uuid(value: &str) -> Result<Uuid, Refusal> {
    let uuid = Uuid::parse_str(value).ok().filter(|uuid| !uuid.is_nil());
    uuid.ok_or_else(|| {
        let remedy = "write it as in uuid=1b4e28ba-2fa1-4d2b-883f-0016d3cca427";
        Refusal::new(format!("{value:?} is not a UUID"), remedy)
    })
}

fn check_whole_blocks(spec: &VolumeSpec) -> Result<(), Refusal> {
    let bytes = match spec.source {
        Source::Memory { bytes } | Source::Null { bytes } => bytes,
        Source::Path { size, .. } => size.unwrap_or(0),
    };
    if bytes.is_multiple_of(u64::from(spec.block_size)) {
        return Ok(());
    }
    let reason = format!("{bytes} bytes are not whole blocks of {} bytes", spec.block_size);
    Err(Refusal::new(reason, "give a multiple of the block size; k, M, G and T make one"))
}

const OPTIONS: &str = "size=, block-size=, ro, nsid=, uuid=, write-through, buffered";
const NSID_MAX: u32 = 1024;

#[cfg(test)]
mod tests;
