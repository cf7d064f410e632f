//! Lock-free I/O path: its source files contain no lock, and the target's do not call its control path.
//!
//! Reads the sources as text. Outside of the listed files, an I/O can take a lock only here:
//! * the page arena, for the first use of a page (`isolane-memory/src/arena.rs`)
//! * the lock bit of a page-table entry, to modify a part of a page (`isolane-memory/src/entry.rs`)
//! * the start and the end of a pool (`isolane-memory/src/pool_account.rs`)
//! * the fence of an association with unfinished older writes (`isolane-target/src/fence.rs`), and of orphans (`orphans.rs` there)
//! * worker threads for file operations without io_uring (`isolane-reactor/src/workers.rs`)
//! * requests that a volume completes from another thread (`isolane-volume/src/request/pending.rs`)
//! * requests of nested volumes, and the state of a mirror (`isolane-volume/src/nested`, `isolane-volumes`)
//! * the leader of a volume that threads share (`isolane-host/src/service/mod.rs`), which is never waited for

use std::fs;
use std::path::{Path, PathBuf};

/// Files and directories on the I/O path of host and target.
const IO_PATH: &[&str] = &[
    "crates/isolane-wire/src",
    "crates/isolane-proto/src/connection",
    "crates/isolane-proto/src/target",
    "crates/isolane-proto/src/host",
    "crates/isolane-memory/src/buffer",
    "crates/isolane-memory/src/buffer.rs",
    "crates/isolane-memory/src/payload",
    "crates/isolane-memory/src/payload.rs",
    "crates/isolane-memory/src/run.rs",
    "crates/isolane-memory/src/entry.rs",
    "crates/isolane-memory/src/table.rs",
    "crates/isolane-volume/src/memory.rs",
    "crates/isolane-volume/src/request/task.rs",
    "crates/isolane-volume/src/request.rs",
    "crates/isolane-volume/src/file",
    "crates/isolane-reactor/src/reactor",
    "crates/isolane-reactor/src/uring",
    "crates/isolane-reactor/src/epoll.rs",
    "crates/isolane-reactor/src/socket_table.rs",
    "crates/isolane-reactor/src/zerocopy_tracker.rs",
    "crates/isolane-reactor/src/backend.rs",
    "crates/isolane-reactor/src/clock.rs",
    "crates/isolane-observe/src/cells.rs",
    "crates/isolane-observe/src/slow.rs",
    "crates/isolane-tcp/src/socket.rs",
    "crates/isolane-reactor/src/spin.rs",
    "crates/isolane-reactor/src/waker.rs",
    "crates/isolane-target/src/core",
    "crates/isolane-target/src/counters.rs",
    "crates/isolane-target/src/lane.rs",
    "crates/isolane-target/src/memory_budget.rs",
    "crates/isolane-target/src/slab.rs",
    "crates/isolane-target/src/timeline.rs",
    "crates/isolane-target/src/work.rs",
    "crates/isolane-host/src/direct",
    "crates/isolane-host/src/request.rs",
    "crates/isolane-host/src/lane_class.rs",
];

/// Files of the target that must not call its control path.
const TARGET_IO_PATH: &[&str] = &[
    "crates/isolane-target/src/core/io.rs",
    "crates/isolane-target/src/core/job.rs",
    "crates/isolane-target/src/lane.rs",
    "crates/isolane-target/src/core/mailbox.rs",
    "crates/isolane-target/src/memory_budget.rs",
    "crates/isolane-target/src/core/mod.rs",
    "crates/isolane-target/src/core/receive.rs",
    "crates/isolane-target/src/core/send.rs",
    "crates/isolane-target/src/core/fair_share.rs",
    "crates/isolane-target/src/core/waiting.rs",
    "crates/isolane-target/src/work.rs",
];

const LOCKS: &[&str] =
    &["Mutex", "RwLock", "Condvar", "Barrier", "parking_lot", "Once", "LazyLock", ".lock()", "thread::park"];

#[test]
fn io_path_contains_no_lock() {
    let mut seen = 0;
    for path in IO_PATH.iter().flat_map(|place| sources(&root().join(place))) {
        let found = code(&path).find(|(_, line)| LOCKS.iter().any(|word| contains_word(line, word)));
        assert!(found.is_none(), "{}: {found:?}", path.display());
        seen += 1;
    }
    assert!(seen > 100, "only {seen} files: the list is out of date");
}

/// Finds the methods of `Shared` that take the lock of the control path in its file.
#[test]
fn io_path_does_not_call_the_control_path() {
    let locking =
        locking_methods(&fs::read_to_string(root().join("crates/isolane-target/src/shared.rs")).unwrap());
    assert!(locking.contains(&"control".to_owned()) && locking.len() >= 5, "{locking:?}");
    for path in TARGET_IO_PATH.iter().flat_map(|place| sources(&root().join(place))) {
        let calls = |line: &str| locking.iter().any(|method| line.contains(&format!("shared.{method}(")));
        let found = code(&path).find(|(_, line)| calls(line));
        assert!(found.is_none(), "{}: {found:?}", path.display());
    }
}

/// Public methods that take the lock.
fn locking_methods(text: &str) -> Vec<String> {
    let mut method = None;
    let mut locking = Vec::new();
    for line in text.lines() {
        if let Some(tail) = line.strip_prefix("    pub(crate) fn ") {
            method = tail.split(['(', '<']).next().map(str::to_owned);
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

/// Whether a line contains the complete word.
fn contains_word(line: &str, word: &str) -> bool {
    let is_part =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    line.match_indices(word).any(|(at, _)| {
        let is_open = word.ends_with(|letter: char| !letter.is_alphanumeric());
        let after = line[at + word.len()..].chars().next();
        let before = line[..at].chars().next_back();
        !is_part(before.filter(|_| !word.starts_with('.'))) && (is_open || !is_part(after))
    })
}

/// Rust files of a directory without tests, or the file.
fn sources(place: &Path) -> Vec<PathBuf> {
    if place.is_file() {
        return vec![place.to_path_buf()];
    }
    let entries = fs::read_dir(place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
    let below = entries
        .flatten()
        .map(|entry| entry.path())
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    below.filter(|path| is_product(path)).collect()
}

fn is_product(path: &Path) -> bool {
    let name = path.to_string_lossy();
    name.ends_with(".rs") && !name.ends_with("tests.rs") && !name.contains("/tests/")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests is in the workspace").to_path_buf()
}

#[test]
fn finds_words_and_methods() {
    assert!(contains_word("use std::sync::Mutex;", "Mutex") && contains_word("queue.lock().jobs", ".lock()"));
    assert!(!contains_word("FutexMutexes", "Mutex") && !contains_word("OnceAgain", "Once"));
    let text =
        "    pub(crate) fn one(&self) {\n        self.control.lock()\n    }\n    pub(crate) fn two() {}\n";
    assert_eq!(locking_methods(text), ["one"]);
}
