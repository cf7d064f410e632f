//! The shape of the repository: arrows point down, unsafe stays in its rooms, files stay short.
//!
//! It reads the sources and manifests as text, so that it needs nothing but the checkout.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What each room may use. A room that is not listed here has no place yet.
const MAY_USE: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("ring", &[]),
    ("memory", &["ring"]),
    ("proto", &["wire", "memory"]),
    ("reactor", &["memory"]),
    ("observe", &[]),
    ("volume", &["memory", "reactor", "observe"]),
    ("target", &["wire", "memory", "proto", "reactor", "volume", "observe"]),
    ("attach", &["ring"]),
    ("capi", &["ring", "attach"]),
    ("host", &["wire", "memory", "proto", "ring", "reactor", "attach", "observe"]),
    ("engine", &["memory", "ring", "reactor", "attach", "host", "observe"]),
    ("verbs", &["memory", "ring", "reactor", "observe"]),
    ("sim", &["wire", "memory", "proto", "reactor", "volume"]),
    (
        "cli",
        &[
            "wire", "memory", "proto", "ring", "reactor", "observe", "volume", "target", "attach", "host",
            "engine", "verbs",
        ],
    ),
];

/// Where `unsafe` may stand: only where the kernel, shared memory or a program in C is touched.
const UNSAFE_ROOMS: &[&str] = &[
    "crates/isolane-memory/src/",
    "crates/isolane-ring/src/",
    "crates/isolane-reactor/src/",
    "crates/isolane-host/src/lent.rs",
    "crates/isolane-capi/src/",
];

/// Crates with an unsafe room; every other crate forbids it at its root.
const CRATES_WITH_UNSAFE_ROOMS: &[&str] = &["memory", "ring", "reactor", "host", "capi"];

const LINES_MAX: usize = 600;

#[test]
fn arrows_point_down_only() {
    let may_use: BTreeMap<_, _> = MAY_USE.iter().copied().collect();
    for room in rooms() {
        let allowed = may_use.get(room.as_str());
        let allowed =
            allowed.unwrap_or_else(|| panic!("crates/{room} has no place in the order of the rooms"));
        for used in normal_dependencies(&read(
            &root().join("crates").join(format!("isolane-{room}")).join("Cargo.toml"),
        )) {
            assert!(allowed.contains(&used.as_str()), "crates/{room} uses {used}: that arrow points up");
        }
    }
}

#[test]
fn the_order_of_the_rooms_has_no_cycle() {
    let mut below: Vec<&str> = Vec::new();
    for (room, uses) in MAY_USE {
        assert!(uses.iter().all(|used| below.contains(used)), "{room} is listed above what it uses");
        below.push(room);
    }
}

#[test]
fn unsafe_stays_in_its_rooms() {
    for path in files(&["rs"]) {
        let name = relative(&path);
        if UNSAFE_ROOMS.iter().any(|room| name.starts_with(room)) {
            continue;
        }
        for (number, line) in read(&path).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let is_unsafe = ["{", "fn", "impl", "trait", "extern"]
                .iter()
                .any(|word| code.contains(&format!("unsafe {word}")) && !code.contains('"'));
            assert!(!is_unsafe, "{name}:{}: unsafe outside of its rooms", number + 1);
        }
    }
}

#[test]
fn every_other_crate_forbids_unsafe() {
    for path in files(&["rs"]) {
        let name = relative(&path);
        let is_root =
            name.ends_with("/src/lib.rs") || name.ends_with("/src/main.rs") || name.contains("/src/bin/");
        if !is_root
            || CRATES_WITH_UNSAFE_ROOMS
                .iter()
                .any(|room| name.starts_with(&format!("crates/isolane-{room}/")))
        {
            continue;
        }
        assert!(read(&path).contains("#![forbid(unsafe_code)]"), "{name} does not forbid unsafe code");
    }
}

#[test]
fn files_stay_short() {
    for path in files(&["rs", "sh", "toml", "run", "md"]) {
        let lines = read(&path).lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines, more than {LINES_MAX}", relative(&path));
    }
}

/// The first folders of a path may be left out there; what stands behind "`file.rs`: " is in that file.
#[test]
fn the_architecture_names_what_there_is() {
    let text = read(&root().join("docs/ARCHITECTURE.md"));
    let parts: Vec<&str> = text.split('`').collect();
    let sources = files(&["rs", "md"]);
    let matching = |name: &str| -> Vec<&PathBuf> {
        let wanted = format!("/{name}{}", ending(name));
        sources.iter().filter(|path| format!("/{}$", relative(path)).contains(&wanted)).collect()
    };
    for at in (1..parts.len()).step_by(2).filter(|at| is_path(parts[*at])) {
        let (name, found) = (parts[at], matching(parts[at]));
        assert!(!found.is_empty() || root().join(name).exists(), "there is no {name}");
        if let [between, word, ..] = &parts[at + 1..]
            && between.trim() == ":"
        {
            let word = word.rsplit("::").next().unwrap_or_default();
            assert!(found.iter().any(|path| read(path).contains(word)), "{name} has no {word}");
        }
    }
}

/// What follows the name of a file, or of a folder, in a path that ends with a `$`.
fn ending(name: &str) -> &'static str {
    if name.ends_with('/') { "" } else { "$" }
}

fn is_path(code: &str) -> bool {
    let is_plain = code.chars().all(|letter| letter.is_alphanumeric() || "_-./".contains(letter));
    is_plain && [".rs", ".md", "/"].iter().any(|ending| code.ends_with(ending) && code != "/")
}

#[test]
fn every_module_says_what_it_is() {
    for path in files(&["rs"]).into_iter().filter(|path| !path.ends_with("tests.rs")) {
        let text = read(&path);
        let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        assert!(first.starts_with("//!"), "{} does not begin with what it is", relative(&path));
    }
}

#[test]
fn the_repository_speaks_of_the_project_alone() {
    // Split, so that this file does not contain what it looks for.
    let words = [
        ["/work/", "main"],
        ["/work/", "shared"],
        ["../sha", "red/"],
        ["/tmp/", "plan"],
        ["issues sh", "ow"],
        ["Clau", "de"],
        ["Anthro", "pic"],
    ];
    for path in files(&["rs", "sh", "toml", "run", "md", "yml"]) {
        let text = read(&path);
        for word in words.map(|halves| halves.concat()) {
            assert!(!text.contains(&word), "{} names {word}", relative(&path));
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests live in the workspace").to_path_buf()
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).expect("a file of the workspace").display().to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

fn rooms() -> Vec<String> {
    let entries = fs::read_dir(root().join("crates")).expect("a folder of crates");
    let folders = entries.flatten().filter(|entry| entry.path().join("Cargo.toml").exists());
    let names = folders.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.map(|name| name.strip_prefix("isolane-").unwrap_or(&name).to_owned()).collect()
}

/// The rooms that a manifest names under `[dependencies]`; tests may look wherever they need to.
fn normal_dependencies(manifest: &str) -> Vec<String> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        }
        let is_normal = section == "[dependencies]" || section.starts_with("[target.");
        if let Some(rest) = line.strip_prefix("isolane-").filter(|_| is_normal) {
            let name = rest.split(|letter: char| !letter.is_alphanumeric() && letter != '-').next();
            found.extend(name.map(str::to_owned));
        }
    }
    found
}

/// All files of the checkout with one of these endings, or named so.
fn files(endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the checkout").flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if path.is_dir() {
                // What a build makes is marked so, unless its folder was there before; others may be called
                // `target` as well.
                let is_build = path == root().join("target") || path.join("CACHEDIR.TAG").exists();
                let is_ours = name != ".git" && !is_build;
                folders.extend(is_ours.then_some(path));
            } else if endings.iter().any(|ending| name == *ending || name.ends_with(&format!(".{ending}"))) {
                found.push(path);
            }
        }
    }
    found
}

/// With a library that is shared and of Rust at once among them, Cargo compiles the dependencies in another way
/// than for the program alone.
#[test]
fn cargo_build_and_cargo_run_compile_the_same() {
    let manifest = read(&root().join("Cargo.toml"));
    let (_, list) = manifest.split_once("default-members = [").expect("a list of default members");
    let list = list.split(']').next().unwrap_or_default();
    let members: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    let manifest_of = |member: &str| read(&root().join(member).join("Cargo.toml"));
    let is_mixed = |member: &str| manifest_of(member).contains("dylib\"");
    for room in rooms().iter().map(|room| format!("crates/isolane-{room}")) {
        assert_ne!(members.contains(&room.as_str()), is_mixed(&room), "{room} in default-members");
    }
}

#[test]
fn no_room_is_overlooked() {
    let names: Vec<String> = files(&["rs"]).iter().map(|path| relative(path)).collect();
    for room in rooms() {
        assert!(names.iter().any(|name| name.starts_with(&format!("crates/isolane-{room}/src/"))), "{room}");
    }
}

#[test]
fn the_reader_of_manifests_sees_normal_dependencies_only() {
    let manifest = "[dependencies]\nisolane-wire.workspace = true\nlog = \"0.4\"\n\n\
        [dev-dependencies]\nisolane-host.workspace = true\n";
    assert_eq!(normal_dependencies(manifest), ["wire"]);
}
