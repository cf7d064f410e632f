//! Programs in C (`programs/`), compiled against the header and linked with the library, in both of its shapes, that
//! talk through an engine of this process.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use isolane_engine::{Engine, EngineConfig, listen};

#[test]
fn an_echo_with_blocking_calls_and_there_and_back() {
    run("echo", Shape::Static);
}

#[test]
fn an_echo_of_many_connections_with_pollers() {
    run("poller", Shape::Shared);
}

#[test]
fn what_goes_wrong_is_told_and_ends_nobody() {
    run("errors", Shape::Shared);
}

#[test]
fn forked_child_cannot_use_and_does_not_harm_session_of_its_parent() {
    run("fork", Shape::Shared);
}

#[test]
fn the_header_is_cpp_as_well() {
    let Ok(_) = Command::new("c++").arg("--version").stdout(Stdio::null()).status() else {
        eprintln!("there is no c++ here: not tried");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("includes.cpp");
    std::fs::write(&source, "#include \"isolane.h\"\nint main() { return isolane_version() == nullptr; }\n")
        .unwrap();
    let program = folder.path().join("includes");
    let mut compiler = Command::new("c++");
    compiler.args(WARNINGS).arg("-std=c++11").arg("-I").arg(root("include")).arg(&source);
    install(folder.path());
    succeed(Shape::Shared.link(compiler.arg("-o").arg(&program), folder.path()));
    succeed(&mut built(&program));
}

#[test]
fn an_installed_library_is_found_by_pkg_config_and_runs_the_example() {
    if Command::new("pkg-config").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("there is no pkg-config here: not tried");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    install(folder.path());
    let packages = folder.path().join("lib/pkgconfig");
    let flags = Command::new("pkg-config")
        .args(["--cflags", "--libs", "isolane"])
        .env("PKG_CONFIG_PATH", packages)
        .output();
    let flags = String::from_utf8(flags.unwrap().stdout).unwrap();
    let program = folder.path().join("echo");
    let mut compiler = Command::new("cc");
    compiler.args(WARNINGS).arg("-std=c11").arg(root("examples/echo.c")).arg("-o").arg(&program);
    succeed(compiler.args(flags.split_whitespace()));

    let socket = folder.path().join("engine.sock");
    let core = isolane_reactor::cpu::allowed().unwrap()[0];
    let engine = Engine::start(EngineConfig::new(vec![core]), listen(&socket).unwrap()).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    let mut command = built(&program);
    command.args([address.as_str(), "hello"]).arg(&socket).env("LD_LIBRARY_PATH", folder.path().join("lib"));
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n", "{output:?}");
    server.join().unwrap();
    assert!(engine.stop(Duration::from_secs(60)));
}

/// How the library is linked.
enum Shape {
    Static,
    Shared,
}

impl Shape {
    fn link<'a>(&self, compiler: &'a mut Command, installed: &Path) -> &'a mut Command {
        let libraries = installed.join("lib");
        match self {
            Shape::Static => {
                compiler.arg(libraries.join("libisolane.a")).args("-lgcc_s -lm -lpthread -ldl".split(' '))
            }
            Shape::Shared => compiler
                .arg("-L")
                .arg(&libraries)
                .arg("-lisolane")
                .arg(format!("-Wl,-rpath,{}", libraries.display())),
        }
    }
}

/// Installs the library below a folder.
fn install(prefix: &Path) {
    succeed(Command::new(root("../../scripts/install-capi")).arg(prefix).arg(libraries()));
}

/// Builds a program, and runs it beside an engine, which ends as soon as the program wants it to.
fn run(name: &str, shape: Shape) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
    let mut compiler = Command::new("cc");
    compiler.args(WARNINGS).args(["-std=c11", "-O1", "-g", "-pthread", "-I"]).arg(root("include"));
    compiler.arg(root("tests/programs").join(name).with_extension("c")).arg("-o").arg(&program);
    install(folder.path());
    succeed(shape.link(&mut compiler, folder.path()));

    let socket = folder.path().join("engine.sock");
    let mut config = EngineConfig::new(vec![isolane_reactor::cpu::allowed().unwrap()[0]]);
    // It shares its core with the program.
    config.spin = Duration::from_micros(20);
    let engine = Engine::start(config, listen(&socket).unwrap()).unwrap();
    let mut child = built(&program);
    child.arg(&socket).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    if said.next().is_some() {
        assert!(engine.stop(Duration::from_secs(60)), "the engine does not end");
    } else {
        assert!(engine.is_healthy());
    }
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "{name}: {status}: {told}");
}

/// A program to be run with the library that it was linked with.
fn built(program: &Path) -> Command {
    let mut command = Command::new(program);
    // Cargo's leads to what an earlier `cargo build` has left.
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

/// Where Cargo has put the library, in all of its shapes: beside this test.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];
