//! The C library, which Cargo does not build for tests.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Builds the static and the shared library once. Returns their directory, or `ISOLANE_CAPI_DIR` if it is set.
pub fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| env::var_os("ISOLANE_CAPI_DIR").map_or_else(build, PathBuf::from))
}

fn build() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let (profile, dir) = if cfg!(debug_assertions) { ("dev", "debug") } else { ("release", "release") };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "isolane-capi", "--profile", profile]);
    let output = cargo.arg("--target-dir").arg(target).output().expect("cargo");
    assert!(output.status.success(), "{cargo:?}: {}", String::from_utf8_lossy(&output.stderr));
    target.join(dir)
}
