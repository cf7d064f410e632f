//! URI of a volume: `nvme+tcp://HOST[:4420]/NQN[?nsid=N]`, with `&cores=LIST` for the cores that use it,
//! `&key=FILE` and `&ctrl-key=FILE` for authentication, `&flush-after-loss=fail` for strict flushes, and
//! `&via=engine` to go through an isolated engine.
//!
//! Parameters of the connection (digests, queues, keep alive) are in [`Options`](crate::Options). An omitted
//! NQN means the only subsystem that discovery finds, an omitted namespace ID the only namespace.
//!
//! Invariant: a [`Uri`] is well formed, and its `to_string` parses to the same value.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::str::FromStr;

use isolane_wire::Nqn;

use crate::cores::{Cores, CoresError};
use crate::options::{FlushAfterLoss, Options, Via};

/// The scheme that every URI starts with.
const SCHEME: &str = "nvme+tcp://";

/// The port that IANA assigned to NVMe over Fabrics, used by default.
pub const DEFAULT_PORT: u16 = 4420;

/// Location of a subsystem or of one of its namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// Name or address of the target, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// The subsystem. `None`: the only one that discovery finds.
    pub nqn: Option<Nqn>,
    /// The namespace. `None`: the only one.
    pub nsid: Option<u32>,
    /// Cores for a volume's lanes, if [`Options::cores`](crate::Options::cores) is empty.
    pub cores: Cores,
    /// Result of the first flush after a loss, if
    /// [`Options::flush_after_loss`](crate::Options::flush_after_loss) is `None`.
    pub flush_after_loss: Option<FlushAfterLoss>,
    /// File with the key of this host, if [`Options::key`](crate::Options::key) is `None`.
    pub key: Option<PathBuf>,
    /// File with the key of the target, if [`Options::ctrl_key`](crate::Options::ctrl_key) is `None`.
    pub ctrl_key: Option<PathBuf>,
    /// The isolated engine to use, if [`Options::via`](crate::Options::via) is `None`.
    pub via: Option<Via>,
}

/// Error in the text of a [`Uri`].
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// Another scheme, or none.
    #[error("{0:?} is not a volume URI: write nvme+tcp://HOST[:4420]/NQN[?nsid=N]")]
    Scheme(String),
    /// Nothing between the scheme and the path.
    #[error("{0:?} names no host: write nvme+tcp://HOST[:4420]/NQN[?nsid=N]")]
    NoHost(String),
    /// A bracket that opens and does not close, or an IPv6 address without brackets.
    #[error("{0:?} is not a host: write an IPv6 address in brackets, as in [::1]:4420")]
    Brackets(String),
    /// The text after the colon is not a port.
    #[error("{0:?} is not a port: give a number from 1 to 65535")]
    Port(String),
    /// A path that is not an NVMe qualified name.
    #[error("{nqn:?} is not an NQN: {reason}; it must look like nqn.2014-08.org.nvmexpress:uuid:…")]
    Nqn {
        /// The text.
        nqn: String,
        /// The error in it.
        reason: String,
    },
    /// A `%` that two hexadecimal digits do not follow.
    #[error("{0:?} has a broken % escape: write % itself as %25")]
    Escape(String),
    /// A namespace id of zero, FFFFFFFFh or no number at all.
    #[error("nsid={0:?} is not a namespace id: give a number from 1 to 4294967294")]
    Nsid(String),
    /// The list of cores is invalid.
    #[error("cores={list:?}: {reason}")]
    Cores {
        /// The text.
        list: String,
        /// The error in it.
        reason: CoresError,
    },
    /// Not the path of a file with a key.
    #[error(
        "{parameter}={text:?} is not the path of a key: write it from the root, as /etc/isolane/host.key"
    )]
    Key {
        /// The parameter.
        parameter: &'static str,
        /// The text.
        text: String,
    },
    /// Neither an engine nor the path of its socket.
    #[error("via={0:?} names no engine: write via=engine, or via= and the absolute path of its socket")]
    Via(String),
    /// Neither of the two choices.
    #[error("flush-after-loss={0:?} is not a choice: write flush-after-loss=trust or flush-after-loss=fail")]
    FlushAfterLoss(String),
    /// A parameter that is not known.
    #[error(
        "{0:?} is not a parameter of a volume URI: only nsid=N, cores=LIST, key=FILE, ctrl-key=FILE, \
         flush-after-loss=trust|fail and via=engine|/PATH are"
    )]
    Parameter(String),
}

impl Uri {
    /// Adds the keys that this URI names to options that name none.
    pub(crate) fn add_keys(&self, options: Options) -> Options {
        let key = options.key.or_else(|| self.key.clone());
        let ctrl_key = options.ctrl_key.or_else(|| self.ctrl_key.clone());
        Options { key, ctrl_key, ..options }
    }

    /// Returns whether an engine connects to the volume.
    pub(crate) fn is_via_engine(&self, options: &Options) -> bool {
        self.via.is_some() || options.via.is_some()
    }

    /// The authority part, `HOST:PORT`, with brackets about an IPv6 address.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Uri, UriError> {
        let remaining = text.strip_prefix(SCHEME).ok_or_else(|| UriError::Scheme(text.to_owned()))?;
        let (remaining, query) = remaining.split_once('?').unwrap_or((remaining, ""));
        let (authority, path) = remaining.split_once('/').unwrap_or((remaining, ""));
        let (host, port) = parse_authority(authority)?;
        if host.is_empty() {
            return Err(UriError::NoHost(text.to_owned()));
        }
        let mut uri = Uri {
            host,
            port,
            nqn: parse_nqn(path)?,
            nsid: None,
            cores: Cores::default(),
            flush_after_loss: None,
            key: None,
            ctrl_key: None,
            via: None,
        };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("nsid", value)) => uri.nsid = Some(parse_nsid(value)?),
                Some(("cores", list)) => {
                    let invalid = |reason| UriError::Cores { list: list.to_owned(), reason };
                    uri.cores = list.parse().map_err(invalid)?;
                }
                Some(("flush-after-loss", value)) => uri.flush_after_loss = Some(value.parse()?),
                Some(("key", path)) => uri.key = Some(parse_key("key", path)?),
                Some(("ctrl-key", path)) => uri.ctrl_key = Some(parse_key("ctrl-key", path)?),
                Some(("via", engine)) => uri.via = Some(unescape(engine)?.parse()?),
                _ => return Err(UriError::Parameter(parameter.to_owned())),
            }
        }
        Ok(uri)
    }
}

impl FromStr for Via {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Via, UriError> {
        match text {
            "engine" => Ok(Via::Engine),
            path if path.starts_with('/') => Ok(Via::EngineAt(path.into())),
            other => Err(UriError::Via(other.to_owned())),
        }
    }
}

impl FromStr for FlushAfterLoss {
    type Err = UriError;

    fn from_str(text: &str) -> Result<FlushAfterLoss, UriError> {
        match text {
            "trust" => Ok(FlushAfterLoss::Trust),
            "fail" => Ok(FlushAfterLoss::Fail),
            other => Err(UriError::FlushAfterLoss(other.to_owned())),
        }
    }
}

impl Display for FlushAfterLoss {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            FlushAfterLoss::Trust => "trust",
            FlushAfterLoss::Fail => "fail",
        })
    }
}

impl Display for Uri {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{SCHEME}{}", self.authority())?;
        if let Some(nqn) = &self.nqn {
            write!(formatter, "/{}", escape(nqn.as_str()))?;
        }
        let nsid = self.nsid.map(|nsid| format!("nsid={nsid}"));
        let cores = (!self.cores.is_empty()).then(|| format!("cores={}", self.cores));
        let via = self.via.as_ref().map(|via| match via {
            Via::Engine => "via=engine".to_owned(),
            Via::EngineAt(path) => format!("via={}", escape(&path.to_string_lossy())),
        });
        let flush = self.flush_after_loss.map(|choice| format!("flush-after-loss={choice}"));
        let path = |name, path: &Option<PathBuf>| {
            path.as_ref().map(|path| format!("{name}={}", escape(&path.to_string_lossy())))
        };
        let keys = [path("key", &self.key), path("ctrl-key", &self.ctrl_key)].into_iter().flatten();
        let parameters = nsid.into_iter().chain(cores).chain(flush).chain(keys).chain(via);
        let before = std::iter::once("?").chain(std::iter::repeat("&"));
        parameters.zip(before).try_for_each(|(parameter, before)| write!(formatter, "{before}{parameter}"))
    }
}

fn parse_authority(authority: &str) -> Result<(String, u16), UriError> {
    let wrong = || UriError::Brackets(authority.to_owned());
    let (host, tail) = match authority.strip_prefix('[') {
        Some(remaining) => remaining.split_once(']').ok_or_else(wrong)?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let is_ipv6 = authority.starts_with('[');
    let port = match tail.strip_prefix(':') {
        Some(port) if is_ipv6 || !port.contains(':') => port,
        None if tail.is_empty() => return Ok((host.to_owned(), DEFAULT_PORT)),
        _ => return Err(wrong()),
    };
    match port.parse() {
        Ok(0) | Err(_) => Err(UriError::Port(port.to_owned())),
        Ok(port) => Ok((host.to_owned(), port)),
    }
}

fn parse_nqn(path: &str) -> Result<Option<Nqn>, UriError> {
    if path.is_empty() {
        return Ok(None);
    }
    let name = unescape(path)?;
    match name.parse::<Nqn>() {
        Ok(nqn) => Ok(Some(nqn)),
        Err(reason) => Err(UriError::Nqn { nqn: name, reason: reason.to_string() }),
    }
}

/// Base Specification: 0 and FFFFFFFFh name no single namespace.
fn parse_nsid(value: &str) -> Result<u32, UriError> {
    match value.parse() {
        Ok(0) | Ok(u32::MAX) | Err(_) => Err(UriError::Nsid(value.to_owned())),
        Ok(nsid) => Ok(nsid),
    }
}

/// A relative path would mean another file in another process.
fn parse_key(parameter: &'static str, text: &str) -> Result<PathBuf, UriError> {
    let path = unescape(text)?;
    if path.starts_with('/') { Ok(path.into()) } else { Err(UriError::Key { parameter, text: path }) }
}

fn unescape(text: &str) -> Result<String, UriError> {
    let broken = || UriError::Escape(text.to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut remaining = text.bytes();
    while let Some(byte) = remaining.next() {
        bytes.push(match byte {
            b'%' => hex(remaining.next())
                .zip(hex(remaining.next()))
                .map(|(high, low)| high << 4 | low)
                .ok_or_else(broken)?,
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| broken())
}

fn hex(digit: Option<u8>) -> Option<u8> {
    Some((digit? as char).to_digit(16)? as u8)
}

/// Escapes what would end the path early or not be printed.
fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, letter| {
        match letter {
            '%' | '?' | '&' | '#' | ' ' => escaped.push_str(&format!("%{:02X}", u32::from(letter))),
            letter => escaped.push(letter),
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

    fn parse(text: &str) -> Result<Uri, UriError> {
        text.parse()
    }

    #[test]
    fn parses_full_uri() {
        let uri = parse(&format!("nvme+tcp://store.example:4421/{NQN}?nsid=7")).unwrap();
        assert_eq!((uri.host.as_str(), uri.port, uri.nsid), ("store.example", 4421, Some(7)));
        assert_eq!(uri.nqn.unwrap().as_str(), NQN);
    }

    #[test]
    fn omitted_parts_have_defaults() {
        for text in ["nvme+tcp://10.0.0.1", "nvme+tcp://10.0.0.1/"] {
            let uri = parse(text).unwrap();
            assert_eq!((uri.host.as_str(), uri.port, uri.nqn, uri.nsid), ("10.0.0.1", 4420, None, None));
        }
    }

    #[test]
    fn ipv6_address_needs_brackets() {
        assert_eq!(parse("nvme+tcp://[::1]").unwrap().authority(), "[::1]:4420");
        assert_eq!(parse("nvme+tcp://[fe80::2]:9").unwrap().authority(), "[fe80::2]:9");
        assert!(matches!(parse("nvme+tcp://::1/"), Err(UriError::Brackets(_))));
        assert!(matches!(parse("nvme+tcp://[::1"), Err(UriError::Brackets(_))));
        assert!(matches!(parse("nvme+tcp://[::1]4420"), Err(UriError::Brackets(_))));
    }

    #[test]
    fn printing_and_parsing_are_inverse() {
        for text in [
            format!("nvme+tcp://h:1/{NQN}?nsid=3"),
            format!("nvme+tcp://[::1]:4420/{NQN}"),
            format!("nvme+tcp://h:1/{NQN}?nsid=3&cores=0,2"),
            "nvme+tcp://h:1?cores=1".to_owned(),
            "nvme+tcp://h:1?flush-after-loss=trust".to_owned(),
            format!("nvme+tcp://h:1/{NQN}?nsid=3&flush-after-loss=fail&via=engine"),
            "nvme+tcp://h:1?nsid=3&via=engine".to_owned(),
            "nvme+tcp://h:1?key=/etc/a%26b.key&ctrl-key=/etc/c.key".to_owned(),
            "nvme+tcp://h:1?via=/run/a%20b%26c/engine.sock".to_owned(),
            "nvme+tcp://h:4420".to_owned(),
            "nvme+tcp://h:4420/nqn.2020-01.org.example:100%25%3Fyes".to_owned(),
        ] {
            assert_eq!(parse(&text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn every_mistake_has_its_own_error() {
        assert!(matches!(parse("/dev/sda"), Err(UriError::Scheme(_))));
        assert!(matches!(parse("nvme+tcp:///nqn"), Err(UriError::NoHost(_))));
        assert!(matches!(parse("nvme+tcp://h:0/"), Err(UriError::Port(_))));
        assert!(matches!(parse("nvme+tcp://h:65536/"), Err(UriError::Port(_))));
        assert!(matches!(parse("nvme+tcp://h/%zz"), Err(UriError::Escape(_))));
        assert!(matches!(parse("nvme+tcp://h/?nsid=0"), Err(UriError::Nsid(_))));
        assert!(matches!(parse("nvme+tcp://h/?nsid=4294967295"), Err(UriError::Nsid(_))));
        assert!(matches!(parse("nvme+tcp://h/?cores=0,0"), Err(UriError::Cores { .. })));
        assert!(matches!(parse("nvme+tcp://h/?nsid"), Err(UriError::Parameter(_))));
        assert!(matches!(parse("nvme+tcp://h/?via=engin"), Err(UriError::Via(_))));
        assert!(matches!(parse("nvme+tcp://h/?key=a"), Err(UriError::Key { parameter: "key", .. })));
        assert!(matches!(parse("nvme+tcp://h/?ctrl-key="), Err(UriError::Key { parameter: "ctrl-key", .. })));
        assert!(matches!(parse("nvme+tcp://h/?flush-after-loss=no"), Err(UriError::FlushAfterLoss(_))));
        assert!(matches!(parse("nvme+tcp://h/?size=1"), Err(UriError::Parameter(_))));
        let long = format!("nvme+tcp://h/nqn.2014-08.org.nvmexpress:{}", "x".repeat(300));
        assert!(matches!(parse(&long), Err(UriError::Nqn { .. })));
    }
}
