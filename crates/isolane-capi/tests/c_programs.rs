//! C programs (`programs/`), compiled against the header and linked with the static or shared library, that use an
//! engine of this process.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use isolane_engine::{Engine, EngineConfig, listen};

#[test]
fn echoes_with_blocking_calls() {
    run("echo", Linkage::Static);
}

#[test]
fn echoes_many_connections_with_pollers() {
    run("poller", Linkage::Shared);
}

#[test]
fn reports_errors() {
    run("errors", Linkage::Shared);
}

#[test]
fn forked_child_cannot_use_parent_session() {
    run("fork", Linkage::Shared);
}

#[test]
fn header_compiles_as_cpp() {
    let Ok(_) = Command::new("c++").arg("--version").stdout(Stdio::null()).status() else {
        eprintln!("c++ not found: skipped");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("includes.cpp");
    std::fs::write(&source, "#include \"isolane.h\"\nint main() { return isolane_version() == nullptr; }\n")
        .unwrap();
    let program = dir.path().join("includes");
    let mut compiler = Command::new("c++");
    compiler.args(WARNINGS).arg("-std=c++11").arg("-I").arg(root("include")).arg(&source);
    succeed(Linkage::Shared.link(compiler.arg("-o").arg(&program), dir.path()));
    succeed(&mut built(&program));
}

enum Linkage {
    Static,
    Shared,
}

impl Linkage {
    /// Links with the library. A program that is linked with the shared one finds it in `dir`, by its soname.
    fn link<'a>(&self, compiler: &'a mut Command, dir: &Path) -> &'a mut Command {
        let libraries = common::libraries();
        match self {
            Linkage::Static => {
                compiler.arg(libraries.join("libisolane.a")).args("-lgcc_s -lm -lpthread -ldl".split(' '))
            }
            Linkage::Shared => {
                let soname = concat!("libisolane.so.", env!("CARGO_PKG_VERSION_MAJOR"));
                symlink(libraries.join("libisolane.so"), dir.join(soname)).unwrap();
                compiler
                    .arg("-L")
                    .arg(libraries)
                    .arg("-lisolane")
                    .arg(format!("-Wl,-rpath,{}", dir.display()))
            }
        }
    }
}

/// Builds a program and runs it with an engine, which stops once the program prints a line.
fn run(name: &str, linkage: Linkage) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join(name);
    let mut compiler = Command::new("cc");
    compiler.args(WARNINGS).args(["-std=c11", "-O1", "-g", "-pthread", "-I"]).arg(root("include"));
    compiler.arg(root("tests/programs").join(name).with_extension("c")).arg("-o").arg(&program);
    succeed(linkage.link(&mut compiler, dir.path()));

    let socket = dir.path().join("engine.sock");
    let mut config = EngineConfig::new(vec![isolane_reactor::cpu::allowed().unwrap()[0]]);
    // The engine shares its core with the program.
    config.spin = Duration::from_micros(20);
    let engine = Engine::start(config, listen(&socket).unwrap()).unwrap();
    let mut child = built(&program);
    child.arg(&socket).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    if stdout.next().is_some() {
        assert!(engine.stop(Duration::from_secs(60)), "the engine does not stop");
    } else {
        assert!(engine.is_healthy());
    }
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "{name}: {status}: {stderr}");
}

/// Runs a program with the library that it was linked with.
fn built(program: &Path) -> Command {
    let mut command = Command::new(program);
    // Cargo's value can lead to a library of an earlier `cargo build`.
    command.env_remove("LD_LIBRARY_PATH");
    command
}

fn succeed(command: &mut Command) {
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}: install a C compiler"));
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];
