//! What SRC and DST may be, and what is known of a destination before anything is written.

use std::fmt;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use isolane_host::{Client, Cores, Options, Uri};

use crate::failure::Failure;
use crate::remote::{self, is_like_address};

/// One side of a copy.
pub enum Side {
    /// `-`: standard input or output.
    Pipe,
    /// A file or block device.
    File(PathBuf),
    /// A volume.
    Volume(Box<Uri>),
}

/// What a destination is like.
pub struct SideInfo {
    /// Writes must be whole blocks of so many bytes.
    pub block_bytes: Option<u64>,
    /// No more than so many bytes fit.
    pub capacity: Option<u64>,
    /// The connection, if it is a volume.
    pub client: Option<Client>,
}

impl Side {
    /// Tells URIs from paths. A name that looks like an address is neither, so that no copy ends in a file of
    /// that name.
    pub fn parse(text: &str) -> Result<Side, Failure> {
        if text == "-" {
            return Ok(Side::Pipe);
        }
        if text.contains("://") {
            return Ok(Side::Volume(Box::new(remote::parse_uri(text)?)));
        }
        if is_like_address(text) {
            return Err(Failure::new(format!("cannot copy {text}"), "it looks like an address")
                .remedy(format!("write nvme+tcp://HOST:PORT/NQN for a volume, or ./{text} for a file")));
        }
        Ok(Side::File(PathBuf::from(text)))
    }

    /// Whether it gives or takes bytes in order only: a pipe, or a character device.
    pub fn is_stream(&self) -> bool {
        match self {
            Side::Pipe => true,
            Side::File(path) => is_stream(path),
            Side::Volume(_) => false,
        }
    }

    /// Whether both name the same thing, as far as can be seen from here: a file has one number, however many
    /// names.
    pub fn is_same(&self, other: &Side) -> bool {
        match (self, other) {
            (Side::File(a), Side::File(b)) => match (number(a), number(b)) {
                (Some(a), Some(b)) => a == b,
                _ => false,
            },
            (Side::Volume(a), Side::Volume(b)) => place(a) == place(b),
            _ => false,
        }
    }

    /// What is known of this side as a destination; connects to a volume.
    pub fn inspect(&self, options: Options) -> Result<SideInfo, Failure> {
        match self {
            Side::Pipe => Ok(SideInfo { block_bytes: None, capacity: None, client: None }),
            Side::File(path) => inspect_file(path),
            Side::Volume(uri) => inspect_volume(uri, options),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Side::Pipe => f.write_str("-"),
            Side::File(path) => write!(f, "{}", path.display()),
            Side::Volume(uri) => write!(f, "{uri}"),
        }
    }
}

/// Whether a path is a block device.
pub fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Whether a path is neither a regular file nor a block device nor a directory.
pub fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| {
        let kind = metadata.file_type();
        !(kind.is_file() || kind.is_dir() || kind.is_block_device())
    })
}

/// What tells a file or block device from every other; none for streams, which are not changed by being read.
fn number(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    let kind = metadata.file_type();
    match (kind.is_file(), kind.is_block_device()) {
        (true, _) => Some((metadata.dev(), metadata.ino())),
        (_, true) => Some((u64::MAX, metadata.rdev())),
        _ => None,
    }
}

/// Where a volume is, whatever the way to it.
fn place(uri: &Uri) -> Uri {
    Uri { cores: Cores::default(), via: None, ..uri.clone() }
}

fn inspect_file(path: &Path) -> Result<SideInfo, Failure> {
    let mut capacity = None;
    if is_block_device(path) {
        let what = || format!("cannot find the size of {}", path.display());
        let mut device = File::open(path).map_err(|why| Failure::of_system(what(), &why))?;
        capacity = Some(device.seek(SeekFrom::End(0)).map_err(|why| Failure::new(what(), why))?);
    }
    Ok(SideInfo { block_bytes: None, capacity, client: None })
}

fn inspect_volume(uri: &Uri, options: Options) -> Result<SideInfo, Failure> {
    let client = remote::connect(uri, options)?;
    let namespace = client.namespace();
    if namespace.is_read_only {
        return Err(
            Failure::new(format!("cannot write to {uri}"), "it is read only").remedy("serve it without `ro`")
        );
    }
    let block_bytes = u64::from(namespace.block_bytes);
    Ok(SideInfo {
        block_bytes: Some(block_bytes),
        capacity: Some(namespace.blocks * block_bytes),
        client: Some(client),
    })
}
