//! No lock for an I/O: the files on the way of one name none, and those of a target do not ask its control
//! path, which has one.
//!
//! It reads the sources as text. What is left, and is no lock in this sense: the arena that pages come from
//! when they are used for the first time (`memory/src/arena.rs`, by way of `pool.rs` and `page.rs`), the bit
//! for who changes an entry of a memory volume's table (`memory/src/table.rs`), what a table or pool leaves
//! behind when it ends (`memory/src/guard.rs`, `meter.rs`), the fence of an association while changes of older
//! ones are unfinished (`target/src/fence.rs`), the threads that do file operations
//! where there is no io_uring (`reactor/src/workers.rs`), and the lead of a volume that threads share
//! (`host/src/service/shared.rs`), which nobody waits for.

use std::fs;
use std::path::{Path, PathBuf};

/// Files and folders that an I/O goes through, on either side.
const WAY: &[&str] = &[
    "crates/isolane-wire/src",
    "crates/isolane-proto/src/queue",
    "crates/isolane-proto/src/target",
    "crates/isolane-proto/src/host",
    "crates/isolane-memory/src/buffer",
    "crates/isolane-memory/src/buffer.rs",
    "crates/isolane-memory/src/payload",
    "crates/isolane-memory/src/payload.rs",
    "crates/isolane-memory/src/run.rs",
    "crates/isolane-memory/src/table.rs",
    "crates/isolane-volume/src/memory.rs",
    "crates/isolane-volume/src/file",
    "crates/isolane-reactor/src/reactor",
    "crates/isolane-reactor/src/ring",
    "crates/isolane-reactor/src/epoll.rs",
    "crates/isolane-reactor/src/lanes.rs",
    "crates/isolane-reactor/src/ledger.rs",
    "crates/isolane-reactor/src/poller.rs",
    "crates/isolane-reactor/src/socket.rs",
    "crates/isolane-reactor/src/spin.rs",
    "crates/isolane-reactor/src/waker.rs",
    "crates/isolane-target/src/core",
    "crates/isolane-target/src/counters.rs",
    "crates/isolane-target/src/table.rs",
    "crates/isolane-host/src/client",
    "crates/isolane-host/src/request.rs",
    "crates/isolane-host/src/classes.rs",
];

/// Those of a target that also stay away from its control path.
const WAY_OF_TARGET: &[&str] = &[
    "crates/isolane-target/src/core/io.rs",
    "crates/isolane-target/src/core/job.rs",
    "crates/isolane-target/src/core/lane.rs",
    "crates/isolane-target/src/core/mail.rs",
    "crates/isolane-target/src/core/memory.rs",
    "crates/isolane-target/src/core/mod.rs",
    "crates/isolane-target/src/core/receive.rs",
    "crates/isolane-target/src/core/send.rs",
    "crates/isolane-target/src/core/share.rs",
    "crates/isolane-target/src/core/waiting.rs",
];

const LOCKS: &[&str] =
    &["Mutex", "RwLock", "Condvar", "Barrier", "parking_lot", "Once", "LazyLock", ".lock()", "park("];

#[test]
fn the_way_of_an_io_names_no_lock() {
    let mut seen = 0;
    for path in WAY.iter().flat_map(|place| sources(&root().join(place))) {
        let found = code(&path).find(|(_, line)| LOCKS.iter().any(|word| names(line, word)));
        assert!(found.is_none(), "{}: {found:?}", path.display());
        seen += 1;
    }
    assert!(seen > 100, "only {seen} files: the list is out of date");
}

/// Every method of `Shared` that takes the lock of the control path is found by looking for the lock in its
/// own file.
#[test]
fn the_way_of_an_io_through_a_target_does_not_enter_its_control_path() {
    let locking =
        locking_methods(&fs::read_to_string(root().join("crates/isolane-target/src/shared.rs")).unwrap());
    assert!(locking.contains(&"control".to_owned()) && locking.len() >= 5, "{locking:?}");
    for path in WAY_OF_TARGET.iter().flat_map(|place| sources(&root().join(place))) {
        let calls = |line: &str| locking.iter().any(|method| line.contains(&format!("shared.{method}(")));
        let found = code(&path).find(|(_, line)| calls(line));
        assert!(found.is_none(), "{}: {found:?}", path.display());
    }
}

/// The public methods in whose body the lock is taken.
fn locking_methods(text: &str) -> Vec<String> {
    let mut method = None;
    let mut locking = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("    pub(crate) fn ") {
            method = rest.split(['(', '<']).next().map(str::to_owned);
        }
        if line.contains(".lock()") {
            locking.extend(method.take());
        }
    }
    locking
}

/// The numbered lines of a file up to its tests, without comments.
fn code(path: &Path) -> impl Iterator<Item = (usize, String)> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let body = text.split("\nmod tests {").next().unwrap_or_default();
    let lines: Vec<_> = body.lines().map(str::to_owned).collect();
    let without_comment = |line: String| line.split("//").next().unwrap_or_default().to_owned();
    (1..).zip(lines.into_iter().map(without_comment))
}

/// Whether a line has a word that is not a part of another.
fn names(line: &str, word: &str) -> bool {
    let is_part =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    line.match_indices(word).any(|(at, _)| {
        let is_open = word.ends_with(|letter: char| !letter.is_alphanumeric());
        let behind = line[at + word.len()..].chars().next();
        let before = line[..at].chars().next_back();
        !is_part(before.filter(|_| !word.starts_with('.'))) && (is_open || !is_part(behind))
    })
}

/// The Rust files of a folder and below, without those of tests; or the file itself.
fn sources(place: &Path) -> Vec<PathBuf> {
    if place.is_file() {
        return vec![place.to_path_buf()];
    }
    let entries = fs::read_dir(place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
    let below = entries.flatten().map(|entry| entry.path()).flat_map(|path| match path.is_dir() {
        true => sources(&path),
        false => vec![path],
    });
    below.filter(|path| is_no_test(path)).collect()
}

fn is_no_test(path: &Path) -> bool {
    let name = path.to_string_lossy();
    name.ends_with(".rs") && !name.ends_with("tests.rs") && !name.contains("/tests/")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests live in the workspace").to_path_buf()
}

#[test]
fn the_reader_of_sources_sees_words_and_methods() {
    assert!(names("use std::sync::Mutex;", "Mutex") && names("queue.lock().jobs", ".lock()"));
    assert!(!names("FutexMutexes", "Mutex") && !names("OnceAgain", "Once"));
    let text =
        "    pub(crate) fn one(&self) {\n        self.control.lock()\n    }\n    pub(crate) fn two() {}\n";
    assert_eq!(locking_methods(text), ["one"]);
}
