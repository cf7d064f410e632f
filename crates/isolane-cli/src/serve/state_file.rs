//! The file with the state that outlives a target, and the lock of its directory.
//!
//! The lock is a lock of an open file description, so it passes to another program with the descriptor.
//!
//! Invariant: the file has the content before or after a write, also after a loss of power.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use isolane_config::ReadError;
use isolane_reactor::{file, retry};
use isolane_volume::spec::MAX_NSID;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::nqn;
use crate::failure::{Failure, IoContext};

/// Content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    /// [`VERSION`].
    version: u64,
    /// The machine that has written it, if it has an ID.
    server: Option<String>,
    /// First generation counter of the discovery log that no host has seen.
    pub generation: u64,
    /// IDs of ports in the discovery log, by name.
    pub ports: BTreeMap<String, u16>,
    /// By NQN.
    pub subsystems: BTreeMap<String, Subsystem>,
}

/// State of a subsystem, also of a removed one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subsystem {
    /// Number above the IDs of all namespaces that it has had.
    pub next_nsid: u32,
}

impl Content {
    /// Returns the content of a new file.
    pub fn new() -> Content {
        Content { version: VERSION, server: server_id(), ..Content::default() }
    }

    /// Checks a text.
    fn parse(text: &str) -> Result<Content, (String, &'static str)> {
        #[derive(Deserialize)]
        struct Header {
            version: u64,
        }
        let damaged = |error: serde_json::Error| (format!("damaged: {error}"), RESTORE);
        let Header { version } = serde_json::from_str(text).map_err(damaged)?;
        if version != VERSION {
            let reason = format!("it has version {version}, and this program reads version {VERSION}");
            return Err((reason, "start the program that has written it"));
        }
        let mut content: Content = serde_json::from_str(text).map_err(damaged)?;
        content.check().map_err(|reason| (format!("damaged: {reason}"), RESTORE))?;
        let own = server_id();
        if content.server.is_some() && own.is_some() && content.server != own {
            return Err(("it is of another server".to_owned(), "use another directory, or remove the file"));
        }
        content.server = own.or(content.server);
        Ok(content)
    }

    fn check(&self) -> Result<(), String> {
        let mut used = BTreeSet::new();
        let twice = |(_, id): &(&String, &u16)| **id == 0 || !used.insert(**id);
        if let Some((name, id)) = self.ports.iter().find(twice) {
            return Err(format!("port {name} has the ID {id}, which is 0 or has another port"));
        }
        let is_invalid = |one: &&Subsystem| !(1..=MAX_NSID + 1).contains(&one.next_nsid);
        if let Some(Subsystem { next_nsid }) = self.subsystems.values().find(is_invalid) {
            return Err(format!(
                "the next namespace ID is {next_nsid}, which is not from 1 to {}",
                MAX_NSID + 1
            ));
        }
        if self.generation > MAX_GENERATION {
            return Err(format!("the generation {} is too large", self.generation));
        }
        Ok(())
    }
}

/// Returns an ID of this machine that does not reveal its machine ID.
fn server_id() -> Option<String> {
    Some(nqn::machine()?.to_string())
}

/// Returns the path of the file.
pub fn path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// Reads the file. Returns `None` without a file, or without a directory yet.
pub fn read(directory: &Path) -> Result<Option<Content>, Failure> {
    let path = path(directory);
    let failed =
        |reason: &dyn std::fmt::Display| Failure::new(format!("cannot use {}", path.display()), reason);
    let text = match isolane_config::read(&path) {
        Ok(text) => text,
        Err(ReadError::System(error))
            if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) =>
        {
            return check_directory(directory);
        }
        Err(ReadError::System(error)) => {
            return Err(Failure::from_io(format!("cannot read {}", path.display()), &error));
        }
        Err(ReadError::NotAFile(what)) => {
            return Err(failed(&format!("{what} instead of a file; remove it")).of_usage());
        }
        Err(ReadError::TooLong) => return Err(failed(&"longer than 4 MiB").with_hint(RESTORE).of_usage()),
        Err(ReadError::NotText(line)) => {
            return Err(failed(&format!("damaged: line {line} is not UTF-8")).with_hint(RESTORE).of_usage());
        }
    };
    match Content::parse(&text) {
        Ok(content) => Ok(Some(content)),
        Err((reason, remedy)) => Err(failed(&reason).with_hint(remedy).of_usage()),
    }
}

/// Checks the directory of a file that is missing.
fn check_directory(directory: &Path) -> Result<Option<Content>, Failure> {
    let what = || format!("cannot use {}", directory.display());
    let not_a_directory = || {
        let failure = Failure::new(what(), "not a directory");
        failure.with_hint("name a directory as server.state").of_usage()
    };
    match directory.metadata() {
        Ok(status) if status.is_dir() => Ok(None),
        Ok(_) => Err(not_a_directory()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => Err(not_a_directory()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = directory.parent().unwrap_or(directory);
            if parent.is_dir() {
                return Ok(None);
            }
            let reason = format!("there is no directory {}", parent.display());
            Err(Failure::new(what(), reason).with_hint("create it, or mount its file system").may_end())
        }
        Err(error) => Err(Failure::from_io(what(), &error)),
    }
}

/// Writes the file, and returns once it is durable.
pub fn write(directory: &Path, content: &Content) -> Result<(), Failure> {
    let path = path(directory);
    let what = || format!("cannot write {}", path.display());
    let text = serde_json::to_string_pretty(content).map_err(|error| Failure::new(what(), error))? + "\n";
    if text.len() as u64 > isolane_config::MAX_FILE_BYTES {
        let remedy = "stop the target, and remove subsystems and ports from the file that will not return";
        return Err(Failure::new(what(), "it would be longer than 4 MiB").with_hint(remedy));
    }
    let temporary = directory.join(TEMPORARY);
    let written = write_temporary(&temporary, &text).and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        // The first error counts.
        let _ = fs::remove_file(&temporary);
    }
    written.and_then(|()| File::open(directory)?.sync_all()).io_context(what())
}

fn write_temporary(temporary: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Creates the directory if it is missing, and locks it. A lock that the program before has passed on continues.
pub fn lock(directory: &Path, inherited: Option<File>) -> Result<File, Failure> {
    let path = directory.join(LOCK);
    let what = || format!("cannot lock {}", path.display());
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(Failure::from_io(format!("cannot create {}", directory.display()), &error));
        }
        _ => {}
    }
    if let Some(file) = inherited.filter(|file| is_at(file, &path)) {
        return Ok(file);
    }
    let attempt = || {
        let file = open_lock(&path)?;
        // One that was removed in the meantime locks nothing.
        let is_locked = file::lock(&file, true)? && is_at(&file, &path);
        Ok::<_, io::Error>((file, is_locked))
    };
    let is_held = |attempted: &io::Result<_>| matches!(attempted, Ok((_, false)));
    let locked = retry::retry_while_held(retry::HELD_TIMEOUT, attempt, is_held, || {
        log::info!("{}: waiting for another target to release it", directory.display());
    });
    let (mut file, is_locked) = locked.io_context(what())?;
    if !is_locked {
        let reason = format!("another target uses the directory{}", owner(&file));
        return Err(Failure::new(what(), reason)
            .with_hint("stop it, or give each target a directory as server.state"));
    }
    // Only for the message above.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
    // A pipe would lock, and hold the reader of its text.
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32).open(path)
}

/// Whether a file is the one at a path.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |one: fs::Metadata, other: fs::Metadata| (one.dev(), one.ino()) == (other.dev(), other.ino());
    file.metadata().and_then(|it| Ok(same(it, path.metadata()?))).unwrap_or(false)
}

/// Describes the process that has written its ID into a lock.
fn owner(file: &File) -> String {
    let mut text = String::new();
    let read = file.take(16).read_to_string(&mut text);
    match text.trim().parse::<u32>() {
        Ok(pid) if read.is_ok() => format!(" (process {pid})"),
        _ => String::new(),
    }
}

/// Version of the format.
const VERSION: u64 = 1;
/// A bound that no target reaches.
const MAX_GENERATION: u64 = u64::MAX >> 1;
/// Name of the file.
const FILE: &str = "state.json";
const TEMPORARY: &str = ".state.json.new";
const LOCK: &str = "state.lock";
const RESTORE: &str =
    "restore it from a backup, or remove it: then IDs of removed namespaces can be used again";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    fn content() -> Content {
        let subsystems = [("nqn.a".to_owned(), Subsystem { next_nsid: 1025 })].into();
        Content { generation: 7000, ports: [("left".to_owned(), 1)].into(), subsystems, ..Content::new() }
    }

    fn refused(directory: &Path) -> String {
        read(directory).expect_err("it is refused").to_string()
    }

    #[test]
    fn reads_the_content_that_was_written() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read(directory.path()).unwrap(), None);
        assert_eq!(read(&directory.path().join("new")).unwrap(), None);
        write(directory.path(), &Content::new()).unwrap();
        write(directory.path(), &content()).unwrap();
        assert_eq!(read(directory.path()).unwrap(), Some(content()));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        let mode = path(directory.path()).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn failed_write_keeps_the_file() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), &content()).unwrap();
        fs::create_dir(directory.path().join(TEMPORARY)).unwrap();
        let error = write(directory.path(), &Content::new()).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("cannot write {}: ", path(directory.path()).display())),
            "{error}"
        );
        assert_eq!(read(directory.path()).unwrap(), Some(content()));
        let long = (0..50_000).map(|at| (format!("{at:0100}"), Subsystem { next_nsid: 1 })).collect();
        let error =
            write(directory.path(), &Content { subsystems: long, ..content() }).unwrap_err().to_string();
        assert!(error.contains("it would be longer than 4 MiB; stop the target"), "{error}");
        assert_eq!(read(directory.path()).unwrap(), Some(content()));
    }

    #[test]
    fn torn_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let text = serde_json::to_string(&content()).unwrap();
        for len in 0..text.len() {
            let zeroed = format!("{}{}", &text[..len], "\0".repeat(text.len() - len));
            for torn in [&text[..len], &zeroed] {
                fs::write(path(directory.path()), torn).unwrap();
                let error = refused(directory.path());
                assert!(error.starts_with("cannot use /") && error.ends_with(RESTORE), "{len}: {error}");
            }
        }
    }

    #[test]
    fn bad_contents_are_refused_with_a_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let valid = serde_json::to_string(&content()).unwrap();
        let other = format!("\"server\":\"{}\"", uuid::Uuid::from_u128(5));
        let own = format!("\"server\":{}", serde_json::to_string(&server_id()).unwrap());
        let mut cases = vec![
            (
                valid.replace("\"version\":1", "\"version\":2"),
                "version 2, and this program reads version 1; start",
            ),
            (valid.replace("\"version\":1", "\"version\":-1"), "damaged: "),
            (
                valid.replace("\"ports\":{", "\"ports\":{\"b\":1,"),
                "port left has the ID 1, which is 0 or has another",
            ),
            (valid.replace("\"left\":1", "\"left\":0"), "port left has the ID 0"),
            (valid.replace("\"left\":1", "\"left\":65536"), "damaged: "),
            (valid.replace("1025", "1026"), "the next namespace ID is 1026, which is not from 1 to 1025"),
            (valid.replace("1025", "0"), "the next namespace ID is 0"),
            (valid.replace("7000", &u64::MAX.to_string()), "is too large"),
            (valid.replace("\"ports\"", "\"pots\""), "damaged: unknown field `pots`"),
            ("{}".to_owned(), "damaged: missing field `version`"),
            ("[".repeat(100_000), "damaged: "),
            (" ".repeat((4 << 20) + 1), "longer than 4 MiB"),
        ];
        // A container can be without a machine ID.
        cases.extend(
            server_id().map(|_| (valid.replace(&own, &other), "it is of another server; use another")),
        );
        for (text, expected) in cases {
            fs::write(path(directory.path()), &text).unwrap();
            let error = refused(directory.path());
            let name = path(directory.path());
            assert!(error.contains(expected) && error.contains(text_of(&name)), "{expected}: {error}");
            assert!(error.contains("; "), "a remedy: {error}");
        }
        fs::write(path(directory.path()), b"{\n\xff}").unwrap();
        assert!(refused(directory.path()).contains("damaged: line 2 is not UTF-8; restore it"));
    }

    fn text_of(path: &Path) -> &str {
        path.to_str().unwrap()
    }

    #[test]
    fn other_things_than_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let name = path(directory.path());
        fs::create_dir(&name).unwrap();
        assert!(refused(directory.path()).contains("a directory instead of a file; remove it"));
        fs::remove_dir(&name).unwrap();
        mkfifoat(CWD, &name, Mode::RUSR | Mode::WUSR).unwrap();
        assert!(refused(directory.path()).contains("a pipe instead of a file; remove it"));
        assert!(refused(&name).contains("not a directory; name a directory as server.state"));
        let error = refused(&directory.path().join("missing/state"));
        assert!(
            error.contains("/missing/state: there is no directory ")
                && error.ends_with("; create it, or mount its file system"),
            "{error}"
        );
    }

    #[test]
    fn lock_is_exclusive_and_passes_to_another_program() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        let first = lock(&state, None).unwrap();
        let passed = first.try_clone().unwrap();
        let error = lock(&state, None).unwrap_err().to_string();
        let expected =
            format!("another target uses the directory (process {}); stop it, or", std::process::id());
        assert!(error.contains(&expected) && error.contains("/state/state.lock"), "{error}");
        let second = lock(&state, Some(passed)).unwrap();
        drop(first);
        assert!(!file::lock(&open_lock(&state.join(LOCK)).unwrap(), true).unwrap(), "the lock continues");
        // The lock of another directory does not lock this one.
        let other = lock(&directory.path().join("other"), Some(second)).unwrap();
        assert!(is_at(&other, &directory.path().join("other").join(LOCK)));
        lock(&state, None).unwrap();
    }
}
