//! `cargo xtask`: runs `bench/measure/main.py` with the programs of this directory.

#![forbid(unsafe_code)]

use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let own = env::current_exe().unwrap_or_default();
    let mut command = Command::new("python3");
    command
        .args(["-B", concat!(env!("CARGO_MANIFEST_DIR"), "/measure/main.py")])
        .args(env::args_os().skip(1));
    let error = command.env("XTASK_PROGRAMS", own.parent().unwrap_or(&own)).exec();
    eprintln!("xtask: cannot run python3: {error}; install it");
    ExitCode::FAILURE
}
