//! Tests of the checks on small fake trees.
//!
//! A [`Case`] has the files of one check. Its values decide between good and bad; without one of its files, or with
//! another content, the check must not be good.

mod blk;
mod capture;
mod cpu;
mod irq;
mod large;
mod lim;
mod mem;
mod net;
mod nvme;
mod own;
mod pci;

use std::fs;

use isolane_observe::snapshot::{Program, Snapshot};

use super::{Context, Finding, State, checks, run, select};
use crate::testing::Tree;

/// Files of one check.
struct Case {
    id: &'static str,
    /// Files that can have any content.
    other: &'static [(&'static str, &'static str)],
    /// Files with which the check is good. Each of them is necessary.
    good: &'static [(&'static str, &'static str)],
    /// Single files that make the check bad.
    bad: &'static [(&'static str, &'static str)],
}

/// Runs one check for reactors on cores 0 and 1.
fn find(tree: &Tree, id: &str) -> Finding {
    let mut context = Context::new(tree.root(), Some(vec![0, 1]));
    let mut findings = run(&mut context, &select(id).expect(id));
    assert_eq!(findings.len(), 1, "{id}");
    findings.remove(0)
}

/// Returns the numbers of a target without I/O.
fn target(pid: u32) -> Snapshot {
    Snapshot { program: Program { pid, ..Program::default() }, ..Snapshot::default() }
}

fn state(tree: &Tree, id: &str) -> State {
    find(tree, id).state
}

impl Case {
    fn test(&self) {
        let Case { id, other, good, bad } = *self;
        let tree = || Tree::new(&[other, good].concat());
        let finding = find(&tree(), id);
        assert_eq!(finding.state, State::Good, "{finding:?}");
        for (path, content) in bad {
            let tree = tree();
            tree.write_bytes(path, content.as_bytes());
            let finding = find(&tree, id);
            assert_eq!(finding.state, State::Bad, "{path} {content}: {finding:?}");
            assert!(!finding.remedy.is_empty(), "{finding:?}");
        }
        for (path, _) in good {
            let tree = tree();
            fs::remove_file(tree.path(path)).unwrap();
            assert_eq!(state(&tree, id), State::Unseen, "{id} without {path}");
            // Cannot be read by any user.
            fs::create_dir(tree.path(path)).unwrap();
            assert_eq!(state(&tree, id), State::Unseen, "{id} with directory {path}");
        }
        for (path, _) in good {
            for content in [&b""[..], b"\xff\0\n\x1b[2J garbage -1", &[b'9'; 70 << 10]] {
                let tree = tree();
                tree.write_bytes(path, content);
                let finding = find(&tree, id);
                assert_ne!(finding.state, State::Good, "{path}: {finding:?}");
                assert!(!finding.value.contains(char::is_control), "{finding:?}");
                assert!(finding.value.len() < 10_000, "{path}: {}", finding.value.len());
            }
        }
    }
}

#[test]
fn ids_are_unique_and_end_in_an_empty_tree() {
    let mut ids: Vec<_> = checks().map(|check| check.id).collect();
    ids.sort_unstable();
    let count = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), count);
    for id in ids {
        let state = state(&Tree::new(&[]), id);
        assert!([State::Unseen, State::Absent].contains(&state), "{id}: {state:?}");
    }
    assert!(select("cpu").is_some_and(|checks| checks.len() == 10) && select("none").is_none());
}

#[test]
fn files_contain_no_long_check() {
    const MAX_LINES: usize = 60;
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/doctor");
    for file in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
        let text = fs::read_to_string(&file).unwrap();
        let functions: Vec<&str> = text.split("\nfn ").collect();
        for function in &functions[1..] {
            let lines = function.lines().take_while(|line| *line != "}").count();
            assert!(lines < MAX_LINES, "{}: {}", file.display(), function.lines().next().unwrap());
        }
    }
}

#[test]
fn running_system_is_only_read() {
    let mut context = Context::new(crate::system::Root::system().unwrap(), None);
    let checks: Vec<_> = checks().collect();
    let findings = run(&mut context, &checks);
    assert_eq!(findings.len(), checks.len());
    let status = super::exit_status(&findings);
    assert_eq!(status, findings.iter().map(Finding::exit_status).max().unwrap());
    let script = super::script(&findings);
    for finding in &findings {
        let is_listed = script.contains(&format!("\n# {}: ", finding.id));
        assert_eq!(is_listed, finding.state == State::Bad, "{script}");
    }
}
