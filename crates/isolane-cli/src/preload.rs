//! Libraries that the system's loader puts into unmodified programs, and whether it will.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::StatVfsMountFlags;

use crate::failure::{Failure, IoContext};

/// A library of this project.
pub struct Library {
    /// Names of its file: as built, and as packages install it.
    pub names: [&'static str; 2],
    /// Its package.
    pub package: &'static str,
    /// Variable of the environment that names its file.
    pub variable: &'static str,
    /// For errors, as "the library of the devices".
    pub description: &'static str,
}

/// Returns the directories of libraries. The first one is of this program.
pub fn places() -> Result<[PathBuf; 3], Failure> {
    let here = env::current_exe().io_context("cannot find this program")?;
    Ok(PLACES.map(|place| here.with_file_name(place)))
}

/// Directories of libraries, from that of this program: as built, as `scripts/install` installs, and of packages.
const PLACES: [&str; 3] = ["", "../lib", "../lib/isolane"];

impl Library {
    /// Finds the library: named by the variable, next to this program, or in `../lib` or `../lib/isolane`.
    pub fn find(&self) -> Result<PathBuf, Failure> {
        if let Some(path) = env::var_os(self.variable).map(PathBuf::from) {
            let path = std::path::absolute(&path).io_context(self.variable)?;
            let name = format!("{}={}", self.variable, path.display());
            return self.check(&path, name).map(|()| path);
        }
        let places = places()?;
        let search = || {
            let files = places.iter().flat_map(|dir| self.names.map(|name| dir.join(name)));
            files.into_iter().find(|path| path.is_file())
        };
        let found = search().or_else(|| self.build(&places[0]).then(search).flatten());
        let path = found.ok_or_else(|| {
            let here = places[0].display();
            let reason = format!("{} is not in {here}, nor in ../lib or ../lib/isolane", self.names[0]);
            Failure::new(format!("cannot find {}", self.description), reason).with_hint(format!(
                "install both with `scripts/install`, or name the file in {}",
                self.variable
            ))
        })?;
        self.check(&path, path.display()).map(|()| path)
    }

    /// Builds the library, if `cargo run` has started this program: it builds only the program.
    fn build(&self, directory: &Path) -> bool {
        let (Some(cargo), Some(manifest), Some(target)) =
            (env::var_os("CARGO"), env::var_os("CARGO_MANIFEST_DIR"), directory.parent())
        else {
            return false;
        };
        let profile = directory.file_name().unwrap_or_default();
        if !target.join("CACHEDIR.TAG").is_file() {
            return false;
        }
        let profile = if profile == "debug" { OsStr::new("dev") } else { profile };
        let mut build = Command::new(cargo);
        build.args(["build", "--package", self.package, "--target-dir"]).arg(target);
        build.arg("--profile").arg(profile).current_dir(manifest);
        build.status().is_ok_and(|status| status.success())
    }

    /// Checks the file of the library, which errors call `name`.
    fn check(&self, path: &Path, name: impl Display) -> Result<(), Failure> {
        let found = Elf::read(path).io_context(&name)?;
        if !found.is_some_and(|elf| elf.kind == SHARED && elf.interpreter.is_none() && elf.is_native()) {
            let failure = Failure::new(&name, "not a shared library for this machine");
            return Err(failure.with_hint(format!("name {}", self.names[0])));
        }
        check_path(path, &name)
    }
}

/// Returns a list of the environment with a further first part.
pub fn prepend(first: &OsStr, present: Option<&OsStr>) -> OsString {
    let mut value = first.to_owned();
    if let Some(present) = present.filter(|present| !present.is_empty()) {
        value.push(":");
        value.push(present);
    }
    value
}

/// Refuses a path that the variables of the system's loader cannot hold.
pub fn check_path(path: &Path, name: &impl Display) -> Result<(), Failure> {
    if path.as_os_str().as_encoded_bytes().iter().any(|byte| b":; \t\n".contains(byte)) {
        let failure = Failure::new(name, "LD_PRELOAD cannot hold a path with a space, colon, or semicolon");
        return Err(failure.with_hint("move the library"));
    }
    Ok(())
}

/// How a program calls the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Through the C library of this machine, or unknown.
    Library,
    /// Past preloaded libraries, because it is linked statically.
    Static,
    /// Past preloaded libraries, because it is written in Go.
    Go,
    /// Through another C library, for which the preloaded one is not made.
    OtherLibrary,
}

/// Refuses a program that drops preloaded libraries. Returns its file, and how it calls the system.
pub fn check_program(name: &OsStr) -> Result<(PathBuf, Calls), Failure> {
    // Without a file, the system names the error when it starts the program.
    let Some(path) = find(name) else { return Ok((name.into(), Calls::Library)) };
    let path = interpreter(&path).unwrap_or(path);
    let cannot = |reason| Failure::new(format!("cannot run {}", path.display()), reason);
    if gains_rights(&path).unwrap_or(false) {
        let failure = cannot("the system preloads no library into set-user-ID programs");
        return Err(
            failure.with_hint("run a copy without the set-user-ID bit, set-group-ID bit, and capabilities")
        );
    }
    let Ok(Some(elf)) = Elf::read(&path) else { return Ok((path, Calls::Library)) };
    if !elf.is_native() {
        return Err(cannot("the library is for another processor").with_hint("build both for the same one"));
    }
    let own = env::current_exe().and_then(|path| Elf::read(&path)).ok().flatten();
    let own = own.and_then(|elf| elf.interpreter);
    let calls = match (elf.is_go, elf.interpreter) {
        (true, _) => Calls::Go,
        (false, None) => Calls::Static,
        // A program that is linked statically does not tell for which library the preloaded one was built.
        (false, interpreter) if own.is_some() && interpreter != own => Calls::OtherLibrary,
        _ => Calls::Library,
    };
    Ok((path, calls))
}

/// Returns the file of a program, as the system finds it.
fn find(name: &OsStr) -> Option<PathBuf> {
    if Path::new(name).components().count() > 1 {
        return Some(name.into());
    }
    let search = env::var_os("PATH")?;
    env::split_paths(&search).map(|directory| directory.join(name)).find(|path| path.is_file())
}

/// Returns the interpreter of a script.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(path).ok()?.take(MAX_SCRIPT_LINE).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let text = std::str::from_utf8(line).ok()?;
    text.split_whitespace().next().map(PathBuf::from)
}

/// Whether the process has more rights after it has started the program: the loader then drops preloaded libraries.
fn gains_rights(path: &Path) -> io::Result<bool> {
    let process = rustix::process::getuid();
    let is_ignored = rustix::thread::no_new_privs()?
        || rustix::fs::statvfs(path)?.f_flag.contains(StatVfsMountFlags::NOSUID);
    let has_capabilities = || rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 64]).is_ok();
    let user = (process.as_raw(), rustix::process::getgid().as_raw());
    let changes = changes_user(&path.metadata()?, user) || (!process.is_root() && has_capabilities());
    Ok(changes && !is_ignored)
}

/// Whether a program runs as another user or group than the one that starts it.
fn changes_user(file: &Metadata, (user, group): (u32, u32)) -> bool {
    let mode = file.mode();
    let sets_group = mode & SET_GROUP_ID == SET_GROUP_ID;
    (mode & SET_USER_ID != 0 && file.uid() != user) || (sets_group && file.gid() != group)
}

/// Properties of an ELF file.
struct Elf {
    /// Class and byte order, then the processor.
    format: [u8; 4],
    kind: u16,
    /// The loader that starts the program, and loads its libraries.
    interpreter: Option<Vec<u8>>,
    /// The program has the note of the Go compiler.
    is_go: bool,
}

impl Elf {
    /// Returns the properties, or `None` for another file.
    fn read(path: &Path) -> io::Result<Option<Elf>> {
        let file = File::open(path)?;
        let mut header = [0; HEADER_BYTES];
        if file.read_exact_at(&mut header, 0).is_err() || !header.starts_with(b"\x7fELF") {
            return Ok(None);
        }
        let format = [header[4], header[5], header[18], header[19]];
        let kind = u16_at(&header, 16);
        let mut elf = Elf { format, kind, interpreter: None, is_go: false };
        // Of a file that is cut, the system names the error.
        let _ = elf.read_segments(&file, &header);
        Ok(Some(elf))
    }

    /// Whether the file is for the same processor as this program.
    fn is_native(&self) -> bool {
        let own = env::current_exe().and_then(|path| Elf::read(&path));
        own.is_ok_and(|own| own.is_some_and(|own| own.format == self.format))
    }

    /// Reads the program headers of a file with 64-bit addresses.
    fn read_segments(&mut self, file: &File, header: &[u8; HEADER_BYTES]) -> io::Result<()> {
        let start = u64::from_le_bytes(std::array::from_fn(|at| header[32 + at]));
        let (size, count) = (u64::from(u16_at(header, 54)), u64::from(u16_at(header, 56)));
        for index in 0..count {
            let mut segment = [0; SEGMENT_BYTES];
            file.read_exact_at(&mut segment, start.saturating_add(index * size))?;
            let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| segment[at + index]));
            let kind = u32::from_le_bytes(std::array::from_fn(|at| segment[at]));
            if kind != INTERPRETER && kind != NOTE {
                continue;
            }
            let mut bytes = vec![0; number(32).min(MAX_SEGMENT_BYTES) as usize];
            let length = file.read_at(&mut bytes, number(8))?;
            bytes.truncate(length);
            if kind == INTERPRETER {
                self.interpreter = Some(bytes);
            } else {
                // Lengths of name and contents, the kind, and the name.
                self.is_go |= bytes.get(8..15) == Some(b"\x04\0\0\0Go\0");
            }
        }
        Ok(())
    }
}

fn u16_at(header: &[u8; HEADER_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([header[at], header[at + 1]])
}

/// Size of the header of an ELF file.
const HEADER_BYTES: usize = 64;
/// Kind of a shared library, and of a program at any address, which mostly has an interpreter.
const SHARED: u16 = 3;
/// Size of a program header.
const SEGMENT_BYTES: usize = 56;
/// Kinds of a program header: the path of the loader, and notes.
const INTERPRETER: u32 = 3;
const NOTE: u32 = 4;
/// Bytes that are read of a segment.
const MAX_SEGMENT_BYTES: u64 = 4096;
const SET_USER_ID: u32 = 0o4000;
/// The bit, and the right to execute, without which it has another meaning.
const SET_GROUP_ID: u32 = 0o2010;
/// Length of the first line of a script that the system reads, in bytes.
const MAX_SCRIPT_LINE: u64 = 256;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn finds_programs_that_change_their_user() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = file.path().metadata().unwrap();
        let (user, group) = (found.uid(), found.gid());
        for (mode, id, changes) in [
            (0o755, (user + 1, group + 1), false),
            (0o4755, (user, group), false),
            (0o4755, (user + 1, group), true),
            (0o2755, (user, group + 1), true),
            (0o2745, (user, group + 1), false),
        ] {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(changes_user(&file.path().metadata().unwrap(), id), changes, "{mode:o} {id:?}");
        }
    }

    #[test]
    fn reads_properties_of_programs() {
        let own = Elf::read(&env::current_exe().unwrap()).unwrap().unwrap();
        assert!(own.is_native() && own.interpreter.is_some() && !own.is_go);
        let cut = tempfile::NamedTempFile::new().unwrap();
        fs::write(cut.path(), [&b"\x7fELF"[..], &[0xff; 60]].concat()).unwrap();
        let cut = Elf::read(cut.path()).unwrap().unwrap();
        assert!(!cut.is_native() && cut.interpreter.is_none());
        assert!(Elf::read(Path::new("/dev/null")).unwrap().is_none());
    }

    #[test]
    fn keeps_other_libraries() {
        let prepend = |present: Option<&str>| prepend(OsStr::new("/a.so"), present.map(OsStr::new));
        assert_eq!(
            [prepend(None), prepend(Some("")), prepend(Some("/b.so"))],
            ["/a.so", "/a.so", "/a.so:/b.so"]
        );
    }

    #[test]
    fn classifies_programs() {
        let own = fs::read(env::current_exe().unwrap()).unwrap();
        assert_eq!(check_program(env::current_exe().unwrap().as_os_str()).unwrap().1, Calls::Library);
        // A header of a program without segments, then one with a note of the Go compiler.
        let mut bytes = own[..HEADER_BYTES].to_vec();
        bytes[32..40].copy_from_slice(&(HEADER_BYTES as u64).to_le_bytes());
        bytes[54..58].copy_from_slice(&[SEGMENT_BYTES as u8, 0, 0, 0]);
        let file = tempfile::NamedTempFile::new().unwrap();
        let classify = |bytes: &[u8]| {
            fs::write(file.path(), bytes).unwrap();
            check_program(file.path().as_os_str()).unwrap().1
        };
        assert_eq!(classify(&bytes), Calls::Static);
        bytes[56] = 1;
        let mut segment = [0; SEGMENT_BYTES];
        segment[0] = NOTE as u8;
        segment[8] = (HEADER_BYTES + SEGMENT_BYTES) as u8;
        segment[32] = 16;
        let note = [&4u32.to_le_bytes()[..], &[0; 4], &4u32.to_le_bytes(), b"Go\0\0"].concat();
        assert_eq!(classify(&[&bytes[..], &segment, &note].concat()), Calls::Go);
        segment[0] = INTERPRETER as u8;
        assert_eq!(classify(&[&bytes[..], &segment, b"/lib/ld-other.so"].concat()), Calls::OtherLibrary);
    }

    #[test]
    fn finds_interpreters_of_scripts() {
        let script = tempfile::NamedTempFile::new().unwrap();
        for (text, expected) in [("#! /bin/sh -e\necho", Some("/bin/sh")), ("#!", None), ("echo", None)] {
            fs::write(script.path(), text).unwrap();
            assert_eq!(interpreter(script.path()), expected.map(PathBuf::from), "{text}");
        }
    }
}
