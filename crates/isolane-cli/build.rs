//! Sets `ISOLANE_VERSION`, the version of the package and the commit of the checkout, if there is one.
//!
//! Invariant: runs again only after HEAD has moved, because each run links the program again.

use std::path::Path;
use std::process::Command;

/// Directory of the workspace.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let commit = commit().map_or_else(String::new, |commit| format!(" ({commit})"));
    println!("cargo::rustc-env=ISOLANE_VERSION={}{commit}", env!("CARGO_PKG_VERSION"));
}

/// Returns the short name of the commit, and watches the files that change when HEAD moves.
fn commit() -> Option<String> {
    // Without this directory, Git would report a repository that only contains a copy of the sources.
    if !Path::new(ROOT).join(".git").exists() {
        return None;
    }
    // The log of HEAD grows with each commit and checkout.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--path-format=absolute", "--git-path", name])?;
        // Cargo would take a missing file as changed.
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(ROOT).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
