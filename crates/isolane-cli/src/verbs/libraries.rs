//! The libraries `libibverbs.so.1` and `librdmacm.so.1` with the symbol versions of rdma-core.
//!
//! Both are one file with several names, so that a process never has two copies of the state. A C compiler links it from
//! the static library, because a linker accepts no version script for the shared library of rustc.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, IoContext};
use crate::preload::{check_path, places};

/// The file that has all versions.
pub const LIBRARY: &str = "libibverbs.so.1";
/// Its other names, of which the ones without a number are for programs that open them with `dlopen`.
const NAMES: [&str; 3] = ["libibverbs.so", "librdmacm.so", "librdmacm.so.1"];
/// Name of the directory of the libraries.
const DIRECTORY: &str = "isolane-verbs";
/// The static library, as built.
const ARCHIVE: &str = "libisolane_ibverbs.a";
const SYMBOLS: &str = include_str!("../../../isolane-ibverbs/versions/symbols.txt");
const FUNCTIONS: &str = include_str!("../../../isolane-ibverbs/versions/functions.c");

/// Returns the directory of the libraries, which have each version of the installed ones. If the static library is next
/// to this program, they are linked from it if they are missing or older.
pub fn find() -> Result<PathBuf, Failure> {
    let places = places()?;
    let archive = places[0].join(ARCHIVE);
    if archive.is_file() {
        update(&archive, &places[0].join(DIRECTORY))?;
    }
    let mut directories = places.iter().map(|place| place.join(DIRECTORY));
    let directory = directories.find(|directory| directory.join(LIBRARY).is_file()).ok_or_else(|| {
        let failure =
            Failure::new(format!("cannot find the directory {DIRECTORY}"), "it is not with this program");
        failure.with_hint("install it with `scripts/install`")
    })?;
    check_path(&directory, &directory.display())?;
    check_versions(&directory)?;
    Ok(directory)
}

/// Links the libraries of the directory, unless they are newer than the static library and this program.
fn update(archive: &Path, directory: &Path) -> Result<(), Failure> {
    let modified = |path: &Path| fs::metadata(path).and_then(|found| found.modified());
    let linked = modified(&directory.join(LIBRARY)).ok();
    let program = env::current_exe().io_context("cannot find this program")?;
    for source in [archive, &program] {
        if linked < Some(modified(source).io_context(source.display())?) {
            return link(archive, directory);
        }
    }
    Ok(())
}

/// Links the libraries from the static library next to this program.
pub fn link_into(directory: &Path) -> Result<(), Failure> {
    link(&places()?[0].join(ARCHIVE), directory)
}

/// Links the libraries. Other processes find the old or the new ones.
fn link(archive: &Path, directory: &Path) -> Result<(), Failure> {
    let cannot = || format!("cannot link {}", directory.join(LIBRARY).display());
    let work = directory.join(format!("link-{}", std::process::id()));
    fs::create_dir_all(&work).io_context(cannot())?;
    let linked = link_in(&work, archive).and_then(|()| {
        fs::rename(work.join(LIBRARY), directory.join(LIBRARY))?;
        NAMES.iter().try_for_each(|name| match symlink(LIBRARY, directory.join(name)) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        })
    });
    let removed = fs::remove_dir_all(&work);
    linked.and(removed).io_context(cannot())
}

fn link_in(work: &Path, archive: &Path) -> io::Result<()> {
    let (script, functions) = (work.join("versions.map"), work.join("functions.c"));
    let generated = Generated::new(SYMBOLS);
    fs::write(&script, generated.script)?;
    fs::write(&functions, format!("{FUNCTIONS}\n{}", generated.aliases))?;
    let compiler = env::var_os("CC").filter(|name| !name.is_empty()).unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.args(["-shared", "-fPIC", "-O2", "-g0"]);
    // A library with threads stays loaded. Its calls of its own functions need no version.
    command
        .arg(format!("-Wl,-soname,{LIBRARY},-Bsymbolic-functions,-z,nodelete,-z,now,-z,relro,--gc-sections"));
    command.arg("-Wl,--version-script").arg(&script).arg("-o").arg(work.join(LIBRARY)).arg(&functions);
    command.args(["-Wl,--whole-archive"]).arg(archive).arg("-Wl,--no-whole-archive").args(SYSTEM_LIBRARIES);
    let output = command
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", compiler.to_string_lossy())))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(text.lines().next().unwrap_or("the compiler failed").to_owned()))
}

/// Libraries that the static library of rustc needs.
const SYSTEM_LIBRARIES: [&str; 5] = ["-lgcc_s", "-lpthread", "-lm", "-ldl", "-lc"];
/// Symbols of the static library that are not exported: of Rust, and of its runtime for the compiler. All others without
/// a version are functions of the C library, which the library replaces.
const LOCAL: &str = "local: _ZN*; _R*; rust_*; __rustc*; isolane_*; __*i[23]; __*[cf][23];";

/// A version script, and aliases in C for the symbols that the static library does not define.
struct Generated {
    script: String,
    aliases: String,
}

impl Generated {
    fn new(symbols: &str) -> Generated {
        let mut generated = Generated { script: String::new(), aliases: String::new() };
        let symbols: Vec<(String, &str)> = versioned(symbols);
        let defined: BTreeSet<&str> = symbols.iter().map(|(_, name)| *name).collect();
        // The loader prefers the first version for references without one, so it has no symbols.
        writeln!(generated.script, "ISOLANE {{ {LOCAL} }};").expect("text");
        for group in symbols.chunk_by(|(first, _), (second, _)| first == second) {
            let version = &group[0].0;
            write!(generated.script, "{version} {{ ").expect("text");
            for (_, symbol) in group {
                let name = symbol.trim_start_matches(MARKS);
                let number = version.strip_prefix(PRIVATE);
                let target = match symbol.as_bytes()[0] {
                    b'!' => "isolane_error".to_owned(),
                    b'-' => "isolane_minus_one".to_owned(),
                    b'*' => "isolane_null".to_owned(),
                    b'&' => "isolane_data".to_owned(),
                    _ if number.is_some() => format!("isolane_{name}"),
                    _ => {
                        write!(generated.script, "{name}; ").expect("text");
                        continue;
                    }
                };
                let is_default = number.is_none() && !defined.contains(name);
                let at = if is_default { "@@" } else { "@" };
                let name = match (name.strip_suffix('N'), number) {
                    (Some(start), Some(number)) => format!("{start}{number}"),
                    _ => name.to_owned(),
                };
                let alias = format!("isolane_{name}_{}", version.replace('.', "_"));
                let lines = [
                    format!(".globl {alias}"),
                    format!(".set {alias}, {target}"),
                    format!(".symver {alias}, {name}{at}{version}"),
                ];
                writeln!(generated.aliases, "__asm__(\"{}\");", lines.join("\\n")).expect("text");
            }
            generated.script += "};\n";
        }
        generated
    }
}

/// Returns the pairs of a version and a symbol with its mark, grouped by version.
fn versioned(symbols: &str) -> Vec<(String, &str)> {
    let lines = symbols.lines().filter(|line| !line.starts_with('#'));
    let lines: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(' ')).collect();
    let of = |wanted: &str| -> Vec<&str> {
        let lines = lines.iter().filter(|(version, _)| *version == wanted);
        lines.flat_map(|(_, names)| names.split(' ')).collect()
    };
    let mut pairs = Vec::new();
    for number in of("N") {
        pairs.extend(of(&format!("{PRIVATE}N")).into_iter().map(|name| (format!("{PRIVATE}{number}"), name)));
    }
    for (version, names) in lines.iter().filter(|(version, _)| version.contains('.')) {
        pairs.extend(names.split(' ').map(|name| (version.to_string(), name)));
    }
    pairs
}

/// Start of the private versions.
const PRIVATE: &str = "IBVERBS_PRIVATE_";
/// Marks of symbols that fail.
const MARKS: [char; 4] = ['!', '-', '*', '&'];

/// Checks that the libraries have each version of the installed ones. A program of this machine needs no other.
fn check_versions(directory: &Path) -> Result<(), Failure> {
    let own = versions(&directory.join(LIBRARY)).io_context(directory.display())?;
    for name in [LIBRARY, "librdmacm.so.1"] {
        let Some(installed) = installed(name, directory) else { continue };
        let all = versions(&installed).io_context(installed.display())?;
        if let Some(missing) = all.difference(&own).next() {
            let reason = format!("this version of Isolane does not have its version {missing}");
            return Err(Failure::new(installed.display(), reason));
        }
    }
    Ok(())
}

/// Returns the file that the system's loader finds for a library, in its usual directories.
fn installed(name: &str, except: &Path) -> Option<PathBuf> {
    let listed = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let listed: Vec<PathBuf> = env::split_paths(&listed).filter(|path| path != except).collect();
    let triplet = format!("{}-linux-gnu", env::consts::ARCH);
    let usual = ["/usr/local/lib", "/lib", "/usr/lib"].map(PathBuf::from);
    let usual = usual.into_iter().flat_map(|path| [path.join(&triplet), path.clone()]);
    let wide = ["/lib64", "/usr/lib64"].map(PathBuf::from);
    let directories = listed.into_iter().chain(usual).chain(wide);
    directories.map(|directory| directory.join(name)).find(|path| path.is_file())
}

/// Returns the symbol versions that a library names.
fn versions(path: &Path) -> io::Result<BTreeSet<String>> {
    let bytes = fs::read(path)?;
    let names = bytes.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    Ok(names.filter(|name| is_version(name)).map(str::to_owned).collect())
}

fn is_version(name: &str) -> bool {
    let number = [PRIVATE, "IBVERBS_", "RDMACM_"].iter().find_map(|prefix| name.strip_prefix(prefix));
    number.is_some_and(|number| {
        number.starts_with(|first: char| first.is_ascii_digit())
            && number.chars().all(|digit| digit.is_ascii_digit() || digit == '.')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generates_a_script_and_aliases() {
        let list =
            "# comment\nN 3 4\nIBVERBS_PRIVATE_N !a b_N\nIBVERBS_1.0 *open -close get\nIBVERBS_1.1 open\n";
        let generated = Generated::new(list);
        let script: Vec<&str> = generated.script.lines().collect();
        assert_eq!(script[0], format!("ISOLANE {{ {LOCAL} }};"));
        assert_eq!(script[1..3], ["IBVERBS_PRIVATE_3 { };", "IBVERBS_PRIVATE_4 { };"]);
        assert_eq!(script[3..], ["IBVERBS_1.0 { get; };", "IBVERBS_1.1 { open; };"]);
        for alias in [
            "a, isolane_error",
            "isolane_b_4_IBVERBS_PRIVATE_4, b_4@IBVERBS_PRIVATE_4",
            ", open@IBVERBS_1.0\"",
            ", close@@IBVERBS_1.0\"",
        ] {
            let alias = alias.replace("a, isolane_error", "isolane_a_IBVERBS_PRIVATE_3, isolane_error");
            assert!(generated.aliases.contains(&alias), "{alias}: {}", generated.aliases);
        }
    }

    #[test]
    fn recognizes_names_of_versions() {
        for name in ["IBVERBS_1.14", "IBVERBS_PRIVATE_34", "RDMACM_1.0"] {
            assert!(is_version(name), "{name}");
        }
        for name in ["IBVERBS_", "IBVERBS_LOG", "IBVERBS_PRIVATE_", "RDMACM_1.x", "GLIBC_2.2.5"] {
            assert!(!is_version(name), "{name}");
        }
    }
}
