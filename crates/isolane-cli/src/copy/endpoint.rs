//! Source or destination of a copy, and properties of a destination before the first write.

use std::fmt;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use isolane_host::{Client, NamespaceInfo, Options, Uri};

use crate::failure::{Failure, IoContext};
use crate::host_args::{self, is_like_address};
use crate::volume;

/// Source or destination of a copy.
pub enum Endpoint {
    /// `-`: standard input or output.
    Pipe,
    /// A file or block device.
    File(PathBuf),
    /// A volume.
    Volume(Box<Uri>),
}

/// Properties of a destination.
pub struct EndpointInfo {
    /// Block size, if writes must be whole blocks.
    pub block_bytes: Option<u64>,
    /// Maximum size in bytes.
    pub capacity: Option<u64>,
    /// The connection, if it is a volume.
    pub client: Option<Client>,
}

impl Endpoint {
    /// Parses a URI or a path. Rejects names that look like addresses or other volumes, so that no copy creates a file of
    /// that name.
    pub fn parse(text: &str) -> Result<Endpoint, Failure> {
        if text == "-" {
            return Ok(Endpoint::Pipe);
        }
        if text.contains("://") {
            return Ok(Endpoint::Volume(Box::new(host_args::parse_uri(text)?)));
        }
        if is_like_address(text) {
            return Err(Failure::new(format!("cannot copy {text}"), "it looks like an address")
                .with_hint(format!("write nvme+tcp://HOST:PORT/NQN for a volume, or ./{text} for a file")));
        }
        if volume::has_kind(text) {
            return Err(Failure::new(format!("cannot copy {text}"), "only a target opens such a volume")
                .with_hint(format!(
                    "start one with `isolane serve {text}`, and copy its URI; write ./{text} for a file"
                )));
        }
        Ok(Endpoint::File(PathBuf::from(text)))
    }

    /// Returns `true` for sequential access only: a pipe, or a character device.
    pub fn is_stream(&self) -> bool {
        match self {
            Endpoint::Pipe => true,
            Endpoint::File(path) => is_stream(path),
            Endpoint::Volume(_) => false,
        }
    }

    /// Returns `true` if both are the same file or block device.
    pub fn is_same_file(&self, other: &Endpoint) -> bool {
        match (self, other) {
            (Endpoint::File(a), Endpoint::File(b)) => identity(a).is_some_and(|a| Some(a) == identity(b)),
            _ => false,
        }
    }

    /// Returns the properties as a destination; connects to a volume.
    pub fn inspect(&self, options: Options) -> Result<EndpointInfo, Failure> {
        match self {
            Endpoint::Pipe => Ok(EndpointInfo { block_bytes: None, capacity: None, client: None }),
            Endpoint::File(path) => inspect_file(path),
            Endpoint::Volume(uri) => inspect_volume(uri, options),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Pipe => f.write_str("-"),
            Endpoint::File(path) => write!(f, "{}", path.display()),
            Endpoint::Volume(uri) => write!(f, "{uri}"),
        }
    }
}

/// Returns `true` for a block device.
pub fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Returns `true` unless the path is a regular file, a block device, or a directory.
pub fn is_stream(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| {
        let kind = metadata.file_type();
        !(kind.is_file() || kind.is_dir() || kind.is_block_device())
    })
}

/// Returns the identity of a file or block device, or `None` for streams.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    let kind = metadata.file_type();
    match (kind.is_file(), kind.is_block_device()) {
        (true, _) => Some((metadata.dev(), metadata.ino())),
        (_, true) => Some((u64::MAX, metadata.rdev())),
        _ => None,
    }
}

/// Returns `true` if both clients use the same namespace, at any address and with or without an engine.
pub fn is_same_volume(a: &Client, b: &Client) -> bool {
    let identity = |client: &Client| {
        let NamespaceInfo { nsid, uuid, nguid, eui64, .. } = *client.namespace();
        (client.info().nqn, nsid, uuid, nguid, eui64)
    };
    identity(a) == identity(b)
}

fn inspect_file(path: &Path) -> Result<EndpointInfo, Failure> {
    let mut capacity = None;
    if is_block_device(path) {
        let what = format!("cannot read the size of {}", path.display());
        capacity =
            Some(File::open(path).and_then(|mut device| device.seek(SeekFrom::End(0))).io_context(what)?);
    }
    Ok(EndpointInfo { block_bytes: None, capacity, client: None })
}

fn inspect_volume(uri: &Uri, options: Options) -> Result<EndpointInfo, Failure> {
    let client = host_args::connect(uri, options)?;
    let namespace = client.namespace();
    if namespace.read_only {
        return Err(Failure::new(format!("cannot write to {uri}"), "it is read only")
            .with_hint("serve it without `ro`"));
    }
    let block_bytes = u64::from(namespace.block_bytes);
    Ok(EndpointInfo {
        block_bytes: Some(block_bytes),
        capacity: Some(namespace.blocks * block_bytes),
        client: Some(client),
    })
}
