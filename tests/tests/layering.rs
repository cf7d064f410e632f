//! The structure of the repository: dependencies point down, unsafe code stays in its crates, files stay short.
//!
//! Reads the sources and manifests as text, so that it needs only the checkout.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use isolane_tests::imports;

/// The crates that each crate can depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("layout", &[]),
    ("log", &[]),
    ("observe", &[]),
    ("wire", &["layout"]),
    ("auth", &["wire"]),
    ("shm", &[]),
    ("ffi", &["shm"]),
    ("tcp", &["shm"]),
    ("memory", &["shm"]),
    ("cuda", &["memory"]),
    ("connection", &["memory"]),
    ("proto", &["wire", "auth", "memory", "connection"]),
    ("reactor", &["memory", "tcp"]),
    ("verbs", &["auth", "layout", "memory", "connection", "tcp", "observe"]),
    ("fabric", &["ffi", "memory", "shm", "verbs"]),
    ("python", &["memory", "verbs"]),
    ("volume", &["memory", "reactor", "observe"]),
    ("nbd", &["layout", "memory", "connection", "reactor", "volume"]),
    ("vhost", &["layout", "memory", "shm", "reactor", "volume"]),
    ("target", &["wire", "memory", "connection", "proto", "reactor", "volume", "observe"]),
    ("engine-api", &["shm", "tcp"]),
    ("inspect", &["observe", "engine-api"]),
    // A program that preloads it has a control socket, as one with a host.
    ("ibverbs", &["ffi", "memory", "cuda", "shm", "verbs", "inspect"]),
    ("attach", &["shm", "tcp", "engine-api"]),
    ("preload", &["shm", "attach"]),
    (
        "host",
        &[
            "wire",
            "auth",
            "memory",
            "connection",
            "proto",
            "shm",
            "reactor",
            "engine-api",
            "attach",
            "observe",
        ],
    ),
    ("volumes", &["wire", "memory", "reactor", "volume", "host"]),
    ("rbd", &["memory", "volume"]),
    ("config", &["wire", "volume", "volumes", "target", "host"]),
    ("capi", &["memory", "shm", "reactor", "volume", "volumes", "rbd", "host", "engine-api", "attach"]),
    ("engine", &["memory", "shm", "tcp", "reactor", "engine-api", "host", "observe"]),
    ("sim", &["memory", "reactor", "volume"]),
    (
        "cli",
        &[
            "wire", "auth", "memory", "proto", "shm", "reactor", "volume", "volumes", "rbd", "target",
            "attach", "host", "engine", "verbs", "inspect", "observe", "nbd", "vhost", "config",
        ],
    ),
];

/// Where `unsafe` is allowed: only where code touches the kernel, shared memory, or a C program.
const UNSAFE_PATHS: &[&str] = &[
    "crates/isolane-memory/src/",
    "crates/isolane-memory/tests/guarded_copy.rs",
    "crates/isolane-memory/tests/loom.rs",
    "crates/isolane-shm/src/",
    "crates/isolane-tcp/src/",
    "crates/isolane-reactor/src/",
    "crates/isolane-host/src/blocking.rs",
    "crates/isolane-capi/src/",
    "crates/isolane-cuda/",
    "crates/isolane-fabric/src/",
    "crates/isolane-ffi/src/",
    "crates/isolane-ibverbs/src/",
    "crates/isolane-preload/src/",
    "crates/isolane-python/src/export.rs",
    "crates/isolane-rbd/src/ffi/",
];

/// Crates with unsafe code; every other crate forbids it at its root.
const UNSAFE_CRATES: &[&str] = &[
    "memory", "shm", "tcp", "reactor", "host", "capi", "cuda", "fabric", "ffi", "ibverbs", "preload",
    "python", "rbd",
];

/// Crates in which sibling modules import each other through their children.
const MODULE_CYCLES: &[&str] = &["volume", "volumes", "host", "inspect", "cli"];

const MAX_LINES: usize = 600;

#[test]
fn dependencies_point_down() {
    let allowed_of: BTreeMap<_, _> = ALLOWED.iter().copied().collect();
    for krate in crates() {
        let allowed = allowed_of.get(krate.as_str());
        let allowed = allowed.unwrap_or_else(|| panic!("crates/isolane-{krate} is not listed in ALLOWED"));
        for used in normal_dependencies(&read(&root().join(format!("crates/isolane-{krate}/Cargo.toml")))) {
            assert!(allowed.contains(&used.as_str()), "crates/isolane-{krate} uses {used}: not allowed");
        }
    }
}

#[test]
fn crate_order_has_no_cycle() {
    let mut below: Vec<&str> = Vec::new();
    for (krate, uses) in ALLOWED {
        assert!(uses.iter().all(|used| below.contains(used)), "{krate} is listed above a dependency");
        below.push(krate);
    }
}

#[test]
fn unsafe_stays_in_listed_paths() {
    for path in files(&["rs"]) {
        let name = relative(&path);
        if UNSAFE_PATHS.iter().any(|krate| name.starts_with(krate)) {
            continue;
        }
        for (number, line) in read(&path).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let is_unsafe = ["{", "fn", "impl", "trait", "extern"]
                .iter()
                .any(|word| code.contains(&format!("unsafe {word}")) && !code.contains('"'));
            assert!(!is_unsafe, "{name}:{}: unsafe code outside of UNSAFE_PATHS", number + 1);
        }
    }
}

#[test]
fn other_crates_forbid_unsafe() {
    for path in files(&["rs"]) {
        let name = relative(&path);
        let is_root =
            name.ends_with("/src/lib.rs") || name.ends_with("/src/main.rs") || name.contains("/src/bin/");
        if !is_root || UNSAFE_CRATES.iter().any(|krate| name.starts_with(&format!("crates/isolane-{krate}/")))
        {
            continue;
        }
        assert!(read(&path).contains("#![forbid(unsafe_code)]"), "{name} does not forbid unsafe code");
    }
}

#[test]
fn files_do_not_import_each_other() {
    let crates = crates().into_iter().map(|krate| format!("crates/isolane-{krate}"));
    for package in crates.chain(["bench", "fuzz", "tests"].map(str::to_owned)) {
        let found = imports::cyclic_imports(&root().join(&package).join("src")).expect("sources");
        assert!(found.is_empty(), "{package}: imports in cycles:\n{}", found.join("\n"));
    }
}

#[test]
fn modules_do_not_import_each_other() {
    for krate in crates() {
        let src = root().join(format!("crates/isolane-{krate}/src"));
        let found = imports::cyclic_modules(&src).expect("sources");
        let is_exempt = MODULE_CYCLES.contains(&krate.as_str());
        assert!(is_exempt || found.is_empty(), "{krate}: modules in cycles:\n{}", found.join("\n"));
        assert!(
            !is_exempt || !found.is_empty(),
            "{krate} has no cycle of modules: remove it from MODULE_CYCLES"
        );
    }
}

#[test]
fn files_stay_short() {
    for path in files(&["rs", "sh", "toml", "run", "md"]) {
        let lines = read(&path).lines().count();
        assert!(lines <= MAX_LINES, "{} has {lines} lines, more than {MAX_LINES}", relative(&path));
    }
}

/// A regression runs only if its file is named after the source of its test.
#[test]
fn regressions_belong_to_tests() {
    let found = files(&["txt"]);
    let found: Vec<String> = found.iter().map(|path| relative(path)).collect();
    let regressions: Vec<_> = found
        .iter()
        .filter_map(|name| name.strip_suffix(".txt")?.split_once("/proptest-regressions/"))
        .collect();
    assert!(!regressions.is_empty(), "found no regressions");
    for (krate, name) in regressions {
        let source = root().join(krate).join("src").join(format!("{name}.rs"));
        let has_test = fs::read_to_string(&source).is_ok_and(|text| text.contains("proptest!"));
        assert!(has_test, "{krate}: the regressions of {name} do not run: {} has no test", source.display());
    }
}

/// Leading directories can be omitted; an identifier after "`file.rs`: " occurs in that file.
#[test]
fn paths_in_documents_exist() {
    let sources = files(&["rs", "md"]);
    let matching = |name: &str| -> Vec<&PathBuf> {
        let wanted = format!("/{name}{}", ending(name));
        sources.iter().filter(|path| format!("/{}$", relative(path)).contains(&wanted)).collect()
    };
    for path in files(&["md"]) {
        let (text, document, dir) = (read(&path), relative(&path), path.parent().expect("a directory"));
        let exists = |name: &str| root().join(name).exists() || dir.join(name).exists();
        let parts: Vec<&str> = text.split('`').collect();
        for at in (1..parts.len()).step_by(2).filter(|at| is_path(parts[*at])) {
            let (name, found) = (parts[at], matching(parts[at]));
            assert!(!found.is_empty() || exists(name), "{document}: there is no {name}");
            if let [between, word, ..] = &parts[at + 1..]
                && between.trim() == ":"
            {
                let word = word.rsplit("::").next().unwrap_or_default();
                assert!(
                    found.iter().any(|path| read(path).contains(word)),
                    "{document}: {name} has no {word}"
                );
            }
        }
    }
}

/// The suffix after the name of a file or directory, in a path that ends with `$`.
fn ending(name: &str) -> &'static str {
    if name.ends_with('/') { "" } else { "$" }
}

fn is_path(code: &str) -> bool {
    let is_plain = code.chars().all(|letter| letter.is_alphanumeric() || "_-./".contains(letter));
    is_plain && [".rs", ".md", "/"].iter().any(|ending| code.ends_with(ending) && code != "/")
}

#[test]
fn files_start_with_module_docs() {
    for path in files(&["rs"]).into_iter().filter(|path| !path.ends_with("tests.rs")) {
        let text = read(&path);
        let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        assert!(first.starts_with("//!"), "{} does not start with a module doc", relative(&path));
    }
}

#[test]
fn repository_names_no_workplace() {
    // Split so that this file does not match.
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
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests is in the workspace").to_path_buf()
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).expect("a file of the workspace").display().to_string()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

fn crates() -> Vec<String> {
    let entries = fs::read_dir(root().join("crates")).expect("directory crates/");
    let dirs = entries.flatten().filter(|entry| entry.path().join("Cargo.toml").exists());
    let names = dirs.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let name =
        |dir: String| dir.strip_prefix("isolane-").expect("directories carry the package name").to_owned();
    names.map(name).collect()
}

/// The crates under `[dependencies]`; tests can depend on anything.
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

/// All files of the checkout with one of these extensions or names.
fn files(endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![root()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("a directory of the checkout").flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if path.is_dir() {
                let build_output = path == root().join("target") || path.join("CACHEDIR.TAG").exists();
                dirs.extend((name != ".git" && !build_output).then_some(path));
            } else if endings.iter().any(|ending| name == *ending || name.ends_with(&format!(".{ending}"))) {
                found.push(path);
            }
        }
    }
    found
}

/// With a library for both Rust and C, Cargo would compile its dependencies differently than for the program alone.
#[test]
fn c_libraries_are_no_rust_libraries() {
    for krate in crates() {
        let manifest = read(&root().join(format!("crates/isolane-{krate}/Cargo.toml")));
        let kinds = manifest.lines().find(|line| line.starts_with("crate-type")).unwrap_or_default();
        assert!(!kinds.contains("\"rlib\"") && !kinds.contains("\"lib\""), "{krate}: {kinds}");
    }
}

#[test]
fn every_crate_is_scanned() {
    let names: Vec<String> = files(&["rs"]).iter().map(|path| relative(path)).collect();
    for krate in crates() {
        assert!(
            names.iter().any(|name| name.starts_with(&format!("crates/isolane-{krate}/src/"))),
            "{krate}"
        );
    }
}

#[test]
fn manifest_reader_ignores_dev_dependencies() {
    let manifest = "[dependencies]\nisolane-wire.workspace = true\nlog = \"0.4\"\n\n\
        [dev-dependencies]\nisolane-host.workspace = true\n";
    assert_eq!(normal_dependencies(manifest), ["wire"]);
}
