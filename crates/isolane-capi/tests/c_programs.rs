//! C programs (`programs/`), compiled against the header and linked with the static or shared library, that use an
//! engine or a target of this process.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use isolane_engine::{Engine, EngineConfig, listen};
use isolane_target::{Target, TargetConfig};

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
fn child_of_a_fork_during_an_open_gets_an_error() {
    run("fork_busy", Linkage::Shared);
    run("fork_busy", Linkage::Static);
}

#[test]
fn reads_and_writes_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("tests/programs/volumes.c", &Linkage::Static, dir.path());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (_target, remote) = serve();
    let engine = path("engine.sock");
    let _engine = start_engine(Path::new(&engine));
    for volume in [
        "mem:64M".to_owned(),
        format!("{},size=64M", path("file")),
        format!("{},size=64M,block-size=4096,buffered", path("buffered")),
        format!("stripe:64k:mem:32M;({},size=32M)", path("member")),
        format!("mirror:({0}1,size=65M);({0}2,size=65M),bitmap={0},create=yes", path("mirror")),
        "delay:10us:mem:64M".to_owned(),
        format!("log:{remote}"),
        remote.clone(),
        format!("{remote}&via={engine}"),
    ] {
        succeed(built(&program).arg(volume));
    }
}

#[test]
fn reports_errors_of_volumes() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("tests/programs/volume_errors.c", &Linkage::Shared, dir.path());
    let (target, remote) = serve();
    let mut program = built(&program);
    run_until_line(program.arg(dir.path()).arg(remote), || drop(target));
}

#[test]
fn example_reads_cache_blocks_in_one_batch() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("examples/kv_cache.c", &Linkage::Shared, dir.path());
    let (_target, remote) = serve();
    for volume in [format!("{},size=64M", dir.path().join("cache").display()), remote] {
        let output = built(&program).arg(&volume).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.starts_with("64 blocks of 64 KiB in "), "{volume}: {output:?}");
    }
    // A batch in which only some requests have an error.
    let small = built(&program).arg("mem:6M").output().unwrap();
    assert!(String::from_utf8_lossy(&small.stderr).contains("end beyond the volume"), "{small:?}");
    let missing = built(&program).arg("/no/such/volume").output().unwrap();
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot open /no/such/volume: no such file"));
}

#[test]
fn logs_to_stderr_only_if_requested() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("examples/kv_cache.c", &Linkage::Shared, dir.path());
    let volume = format!("{},size=64M", dir.path().join("cache").display());
    let log = |level: Option<&str>| {
        let mut command = built(&program);
        command.arg(&volume).env_remove("ISOLANE_LOG");
        if let Some(level) = level {
            command.env("ISOLANE_LOG", level);
        }
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    assert_eq!(log(None), "");
    assert_eq!(log(Some("off")), "");
    let lines = log(Some("info"));
    assert!(lines.starts_with("isolane: ") && lines.contains(": 64M, "), "{lines}");
    assert!(log(Some("loud")).contains("ISOLANE_LOG=loud: unknown level; use off, error, warn"));
}

/// Serves a volume in memory, and returns its address.
fn serve() -> (Target, String) {
    const NQN: &str = "nqn.2024-01.org.example:c";
    let mut config = TargetConfig::new(NQN.parse().unwrap());
    config.subsystems[0].volumes.push((1, isolane_volume::open(&"mem:64M".parse().unwrap()).unwrap()));
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.mode = isolane_reactor::Mode::Sleep;
    let target = Target::start(config).unwrap();
    let address = format!("nvme+tcp://{}/{NQN}?nsid=1", target.local_addrs()[0]);
    (target, address)
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
    let program = compile(&format!("tests/programs/{name}.c"), &linkage, dir.path());
    let socket = dir.path().join("engine.sock");
    let mut engine = Some(start_engine(&socket));
    let mut stop = || engine.take().is_some_and(|engine| engine.stop(Duration::from_secs(60)));
    run_until_line(built(&program).arg(&socket), || assert!(stop(), "the engine does not stop"));
    assert!(engine.is_none_or(|engine| engine.is_healthy()));
}

fn start_engine(socket: &Path) -> Engine {
    let mut config = EngineConfig::new(vec![isolane_reactor::cpu::allowed().unwrap()[0]]);
    // The engine shares its core with the program.
    config.spin = Duration::from_micros(20);
    Engine::start(config, listen(socket).unwrap()).unwrap()
}

/// Compiles a source file, and returns the program.
fn compile(source: &str, linkage: &Linkage, dir: &Path) -> PathBuf {
    let source = root(source);
    let program = dir.join(source.file_stem().unwrap());
    let mut compiler = Command::new("cc");
    compiler.args(WARNINGS).args(["-std=c11", "-O1", "-g", "-pthread", "-I"]).arg(root("include"));
    compiler.arg(source).arg("-o").arg(&program);
    succeed(linkage.link(&mut compiler, dir));
    program
}

/// Runs a program, and calls `on_line` once it prints a line.
fn run_until_line(program: &mut Command, on_line: impl FnOnce()) {
    let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    if stdout.next().is_some() {
        on_line();
    }
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "{program:?}: {status}: {stderr}");
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
