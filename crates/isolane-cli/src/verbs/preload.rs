//! Whether the system's loader will put the library of the devices into a program.

use std::env;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;

use crate::failure::{Failure, IoContext};

/// Checks a library, which errors call `name`.
pub(super) fn check_library(path: &Path, name: impl Display) -> Result<(), Failure> {
    let found = Elf::read(path).io_context(&name)?;
    if !found.is_some_and(|elf| elf.kind == SHARED && !elf.has_interpreter && elf.is_native()) {
        let failure = Failure::new(&name, "not a shared library for this machine");
        return Err(failure.with_hint("name libisolane_ibverbs.so"));
    }
    if path.as_os_str().as_encoded_bytes().iter().any(|byte| b": \t\n".contains(byte)) {
        let failure = Failure::new(&name, "LD_PRELOAD cannot hold a path with a space or a colon");
        return Err(failure.with_hint("move the library"));
    }
    Ok(())
}

/// Refuses a program that drops the library, and warns of one that does not load it.
pub(super) fn check_program(name: &OsStr) -> Result<(), Failure> {
    // Without a file, the system names the error when it starts the program.
    let Some(path) = find(name) else { return Ok(()) };
    let path = interpreter(&path).unwrap_or(path);
    let cannot = |reason| Failure::new(format!("cannot run {}", path.display()), reason);
    if gains_rights(&path).unwrap_or(false) {
        let failure = cannot("the system preloads no library into set-user-ID programs");
        return Err(
            failure.with_hint("run a copy without the set-user-ID bit, set-group-ID bit, and capabilities")
        );
    }
    let Ok(Some(elf)) = Elf::read(&path) else { return Ok(()) };
    if !elf.is_native() {
        return Err(cannot("the library is for another processor").with_hint("build both for the same one"));
    }
    if !elf.has_interpreter {
        log::warn!(
            "{} is linked statically: only programs that it starts have RDMA devices; link it dynamically",
            path.display()
        );
    }
    Ok(())
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
    /// A loader starts the program, and loads its libraries.
    has_interpreter: bool,
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
        let has_interpreter = has_interpreter(&file, &header).unwrap_or(false);
        Ok(Some(Elf { format, kind: u16_at(&header, 16), has_interpreter }))
    }

    /// Whether the file is for the same processor as this program.
    fn is_native(&self) -> bool {
        let own = env::current_exe().and_then(|path| Elf::read(&path));
        own.is_ok_and(|own| own.is_some_and(|own| own.format == self.format))
    }
}

/// Looks for the path of a loader in the program headers of a file with 64-bit addresses.
fn has_interpreter(file: &File, header: &[u8; HEADER_BYTES]) -> io::Result<bool> {
    let start = u64::from_le_bytes(std::array::from_fn(|at| header[32 + at]));
    let (size, count) = (u64::from(u16_at(header, 54)), u64::from(u16_at(header, 56)));
    for index in 0..count {
        let mut kind = [0; 4];
        file.read_exact_at(&mut kind, start.saturating_add(index * size))?;
        if u32::from_le_bytes(kind) == INTERPRETER {
            return Ok(true);
        }
    }
    Ok(false)
}

fn u16_at(header: &[u8; HEADER_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([header[at], header[at + 1]])
}

/// Size of the header of an ELF file.
const HEADER_BYTES: usize = 64;
/// Kind of a shared library, and of a program at any address, which mostly has an interpreter.
const SHARED: u16 = 3;
/// Kind of a program header: the path of the loader.
const INTERPRETER: u32 = 3;
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
        assert!(own.is_native() && own.has_interpreter);
        let cut = tempfile::NamedTempFile::new().unwrap();
        fs::write(cut.path(), [&b"\x7fELF"[..], &[0xff; 60]].concat()).unwrap();
        let cut = Elf::read(cut.path()).unwrap().unwrap();
        assert!(!cut.is_native() && !cut.has_interpreter);
        assert!(Elf::read(Path::new("/dev/null")).unwrap().is_none());
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
