//! Source of a snapshot for a command: the control socket of a running program, a file, or a target on another machine.
//!
//! [`Source::choose`] finds it, and [`Source::read`] returns a [`Snapshot`] whose names contain no control characters,
//! so that they can be printed.
//!
//! Invariant: time and memory of a read are bounded, and no content of a file or of a response causes a panic.

mod decode;
mod find;
mod http;
mod source_error;

use std::io::{ErrorKind, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolane_observe::snapshot::Snapshot;

pub(crate) use decode::parse_document;
pub use decode::{Invalid, decode};
pub use find::{ControlSocket, control_sockets, is_socket_of_trusted_user};
pub use http::{execute, follow, get_within, read_lines};
pub use source_error::SourceError;

/// Limit in bytes of a document.
const MAX_BYTES: usize = 64 << 20;

/// Where a command reads snapshots.
#[derive(Debug, Clone)]
pub enum Source {
    /// Control socket of a running program.
    Socket(PathBuf),
    /// File with one document.
    File(PathBuf),
    /// Program on another machine. Its documents have no steps.
    Remote(Arc<dyn Remote>),
}

/// Reader of a program on another machine.
pub trait Remote: std::fmt::Debug + Send + Sync {
    /// Returns the name of the program, for errors.
    fn name(&self) -> String;

    /// Returns the document as it is now.
    ///
    /// # Errors
    /// The reason.
    fn read_text(&self) -> Result<Vec<u8>, String>;
}

/// Parts of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// All of it.
    All,
    /// Without the steps of the last minutes.
    Now,
}

impl Source {
    /// Returns the file, else the socket, else the only control socket of a running program.
    ///
    /// # Errors
    /// No program or several programs have a control socket, or the socket is an address of a target.
    pub fn choose(socket: Option<&Path>, file: Option<&Path>) -> Result<Source, SourceError> {
        if let Some(file) = file {
            return Ok(Source::File(file.to_owned()));
        }
        if let Some(socket) = socket {
            if socket.to_string_lossy().contains("://") {
                return Err(SourceError::Remote(socket.to_owned()));
            }
            return Ok(Source::Socket(socket.to_owned()));
        }
        let mut found = control_sockets();
        match found.len() {
            0 => Err(SourceError::None(find::directories())),
            1 => Ok(Source::Socket(found.remove(0).path)),
            _ => Err(SourceError::Several(found)),
        }
    }

    /// Returns `true` if later reads return newer numbers.
    pub fn is_live(&self) -> bool {
        !matches!(self, Source::File(_))
    }

    /// Reads the document as it is.
    ///
    /// # Errors
    /// The file or program cannot be read, or the document is too long.
    pub fn read_text(&self, parts: Parts) -> Result<Vec<u8>, SourceError> {
        match self {
            Source::Socket(path) => http::get(path, parts.target(), MAX_BYTES),
            Source::File(path) => read_file(path),
            Source::Remote(remote) => remote.read_text(),
        }
        .map_err(|reason| SourceError::Unreadable { path: self.path(), reason })
    }

    /// Reads and checks a document.
    ///
    /// # Errors
    /// As [`Source::read_text`], and [`SourceError::Malformed`], which names the field.
    pub fn read(&self, parts: Parts) -> Result<Snapshot, SourceError> {
        let text = self.read_text(parts)?;
        let mut snapshot = decode(&text).map_err(|invalid| SourceError::Malformed {
            path: self.path(),
            field: invalid.field,
            reason: invalid.reason,
        })?;
        if parts == Parts::Now {
            snapshot.steps = Vec::new();
        }
        Ok(snapshot)
    }

    /// Passes a document to `f` now and after each interval, until `f` breaks. A file is read once.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn poll(
        &self,
        parts: Parts,
        interval: Duration,
        mut f: impl FnMut(Snapshot) -> ControlFlow<()>,
    ) -> Result<(), SourceError> {
        let mut next = Instant::now();
        while f(self.read(parts)?).is_continue() && self.is_live() {
            next = (next + interval).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        match self {
            Source::Socket(path) | Source::File(path) => path.clone(),
            Source::Remote(remote) => remote.name().into(),
        }
    }
}

impl Parts {
    const fn target(self) -> &'static str {
        match self {
            Parts::All => "/snapshot.json",
            Parts::Now => "/snapshot.json?steps=no",
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let file = std::fs::File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => "no such file; check the path".to_owned(),
        _ => error.to_string(),
    })?;
    let mut text = Vec::new();
    let limit = MAX_BYTES as u64 + 1;
    file.take(limit).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() > MAX_BYTES { Err(too_long(MAX_BYTES)) } else { Ok(text) }
}

fn too_long(limit: usize) -> String {
    format!("the document is longer than {} MiB", limit >> 20)
}

#[cfg(test)]
mod tests {
    use isolane_observe::snapshot::VERSION;

    use super::*;

    #[test]
    fn file_goes_before_socket() {
        let (socket, file) = (Path::new("a.sock"), Path::new("b.json"));
        let chosen = Source::choose(Some(socket), Some(file)).unwrap();
        assert!(matches!(chosen, Source::File(path) if path == file));
        let chosen = Source::choose(Some(socket), None).unwrap();
        assert!(matches!(chosen, Source::Socket(path) if path == socket));
    }

    #[test]
    fn rejects_addresses_of_targets() {
        let error = Source::choose(Some(Path::new("nvme+tcp://10.0.0.1")), None).unwrap_err().to_string();
        assert!(error.contains("nvme+tcp://10.0.0.1") && error.contains("`--from`"), "{error}");
    }

    #[test]
    fn reads_a_file_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!(r#"{{"version":{VERSION},"steps":[{{}}]}}"#)).unwrap();
        let source = Source::File(file.path().to_owned());
        assert_eq!(source.read(Parts::All).unwrap().steps.len(), 1);
        let mut count = 0;
        let reader = |snapshot: Snapshot| {
            assert!(snapshot.steps.is_empty());
            count += 1;
            ControlFlow::Continue(())
        };
        source.poll(Parts::Now, Duration::ZERO, reader).unwrap();
        assert_eq!(count, 1);
    }

    /// A target that returns any text.
    #[derive(Debug)]
    struct Text(Result<&'static str, String>);

    impl Remote for Text {
        fn name(&self) -> String {
            String::from("nvme+tcp://a")
        }

        fn read_text(&self) -> Result<Vec<u8>, String> {
            self.0.clone().map(|text| text.as_bytes().to_vec())
        }
    }

    #[test]
    fn checks_documents_of_other_machines() {
        let read = |text| Source::Remote(Arc::new(Text(text))).read(Parts::Now).map_err(|at| at.to_string());
        assert_eq!(read(Ok(r#"{"version":1,"at_unix_ms":7,"steps":[{}]}"#)).unwrap().steps.len(), 0);
        let error = read(Ok(r#"{"version":1,"slow":{}}"#)).unwrap_err();
        assert!(error.starts_with("nvme+tcp://a: slow: "), "{error}");
        assert_eq!(read(Err(String::from("no page"))).unwrap_err(), "nvme+tcp://a: no page");
    }

    #[test]
    fn errors_name_file_and_field() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let source = Source::File(file.path().to_owned());
        let name = file.path().display().to_string();
        for (text, field) in
            [("{\"numbers\":{\"cores\":3}}", "numbers.cores"), ("x", "line 1"), ("", "line 1")]
        {
            std::fs::write(file.path(), text).unwrap();
            let error = source.read(Parts::All).unwrap_err().to_string();
            assert!(error.starts_with(&name) && error.contains(field), "{error}");
        }
        assert!(
            Source::File("/no/such".into()).read(Parts::All).unwrap_err().to_string().contains("/no/such")
        );
    }
}
