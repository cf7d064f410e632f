//! `isolane engine run`: the environment of the program, and what is refused. `tests/preload.sh` runs programs.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::program;

/// Compiles a program that returns 0.
fn compile(file: &Path, options: &[&str]) -> PathBuf {
    let source = file.with_extension("c");
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    let mut compiler = Command::new("cc");
    let output = compiler.args(options).arg("-o").args([file, &source]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    file.to_owned()
}

fn run(library: &Path, socket: &Path, arguments: &[&OsStr]) -> Output {
    let mut command = program();
    command.env("ISOLANE_PRELOAD", library).env("ISOLANE_BIN", env!("CARGO_BIN_EXE_isolane"));
    command.env_remove("LD_PRELOAD").args(["engine", "run", "--socket"]).arg(socket).args(arguments);
    command.output().unwrap()
}

#[test]
fn engine_run_starts_the_program_and_an_engine() {
    let directory = tempfile::tempdir().unwrap();
    let library = compile(&directory.path().join("library"), &["-shared", "-fPIC"]);
    let socket = directory.path().join("sock");
    let shown = "echo $LD_PRELOAD $ISOLANE_PRELOAD_SOCKET $ISOLANE_PRELOAD_STATS; exit 7";
    let arguments = ["--stats=/tmp/stats", "--", "sh", "-c", shown].map(OsStr::new);
    let output = run(&library, &socket, &arguments);
    let expected = format!("{} {} /tmp/stats\n", library.display(), socket.display());
    let stopped = program().args(["engine", "stop", "--socket"]).arg(&socket).output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout)), (Some(7), expected.into()));
    assert!(stopped.status.success(), "{stopped:?}");
}

#[test]
fn engine_run_refuses_programs_and_settings() {
    let directory = tempfile::tempdir().unwrap();
    let library = compile(&directory.path().join("library"), &["-shared", "-fPIC"]);
    let fixed = compile(&directory.path().join("fixed"), &["-static"]);
    let socket = directory.path().join("missing/sock");
    let yes = Path::new("true");
    for (library, program, reason) in [
        (library.as_path(), fixed.as_path(), "it is linked statically"),
        (Path::new("/no/such/library"), yes, "ISOLANE_PRELOAD=/no/such/library: No such file"),
        (Path::new("/dev/null"), yes, "not a shared library for this machine; name libisolane_preload.so"),
        (&library, yes, "no directory"),
    ] {
        let output = run(library, &socket, &[program.as_os_str()]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(reason), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let mut command = program();
    let output = command.env("ISOLANE_ADOPT", "never").args(["engine", "run", "true"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("ISOLANE_ADOPT=never: not a policy; write always"), "{error}");
}
