//! The header, the sources, and the libraries have the same functions, types, and numbers.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Types of the arguments and the result, in Rust.
type Signatures = BTreeMap<String, Vec<String>>;

#[test]
fn header_matches_sources() {
    let (declared, mut defined) = (declared(&header()), defined(&sources()));
    // The others are called by the C library.
    defined.retain(|name, _| name.starts_with("isolane_"));
    assert!(declared.len() > 60, "{declared:?}");
    for (name, types) in &declared {
        assert_eq!(Some(types), defined.get(name), "{name}: header and sources");
    }
    assert_eq!(names(&declared), names(&defined));
}

#[test]
fn header_matches_exports() {
    let declared = names(&declared(&header()));
    assert_eq!(exported(&["-D"], "libisolane.so"), declared);
    let all = exported(&["-g"], "libisolane.a");
    let ours: BTreeSet<_> = all.into_iter().filter(|name| name.starts_with("isolane_")).collect();
    assert_eq!(ours, declared);
}

/// Without a soname, a program would look for the library in the directory of its build.
#[test]
fn shared_library_has_versioned_soname() {
    let output = Command::new("readelf").arg("-d").arg(built("libisolane.so")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let soname = concat!("Library soname: [libisolane.so.", env!("CARGO_PKG_VERSION_MAJOR"), "]");
    assert!(text.contains(soname), "{text}");
}

#[test]
fn header_numbers_match_sources() {
    let (header, sources) = (header(), sources());
    let numbers: Vec<_> =
        header.split(['{', ',', '}']).filter_map(|item| item.trim().split_once(" = ")).collect();
    assert_eq!(numbers.len(), 16, "{numbers:?}");
    for (name, number) in &numbers {
        assert!(sources.contains(&format!("const {name}: c_int = {number};")), "{name}");
    }
    assert_eq!(sources.matches("const ISOLANE_").count(), numbers.len());
}

/// A program and the library must agree on every field.
#[test]
fn header_structures_match_sources() {
    let (header, sources) = (header(), sources());
    let declared: BTreeMap<_, Vec<_>> = structures(&header, "typedef struct isolane_", ';', |field| {
        let (type_in_c, name) = split_name(field);
        format!("{name}: {}", in_rust(type_in_c))
    });
    assert_eq!(declared.len(), 2, "{declared:?}");
    let code = sources.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<String>();
    let defined = structures(&code, "#[repr(C)]pub struct ", ',', str::to_owned);
    for (name, fields) in &declared {
        let name_in_rust = in_rust(&format!("isolane_{name}"));
        assert_eq!(Some(fields), defined.get(&name_in_rust), "{name}: header and sources");
    }
    assert_eq!(declared.len(), defined.len(), "{defined:?}");
}

/// Returns the fields of each structure, by the name that follows `start`.
fn structures(
    text: &str,
    start: &str,
    end_of_field: char,
    show: impl Fn(&str) -> String,
) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for part in text.split(start).skip(1) {
        // Without a body: an opaque type.
        let Some((name, body)) = part.split_once('{') else { continue };
        let (Some((body, _)), false) = (body.split_once('}'), name.contains(';')) else { continue };
        let fields = body.split(end_of_field).map(str::trim).filter(|field| !field.is_empty());
        found.insert(name.trim().to_owned(), fields.map(&show).collect());
    }
    found
}

#[test]
fn header_has_crate_version() {
    let wanted = format!("#define ISOLANE_VERSION \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(
        fs::read_to_string(root("include/isolane.h")).unwrap().lines().any(|line| line == wanted),
        "{wanted}"
    );
}

#[test]
fn parses_declarations() {
    let text = "const char *isolane_a(void); int isolane_b(isolane_poller *poller, isolane_stream **stream);";
    let expected = [
        ("isolane_a".to_owned(), vec!["*const c_char".to_owned()]),
        ("isolane_b".to_owned(), ["*mut Poller", "*mut *mut Stream", "c_int"].map(str::to_owned).to_vec()),
    ];
    assert_eq!(declared(text), Signatures::from(expected.clone()));
    let text = "pub extern \"C\" fn isolane_a() -> *const c_char {\n}\npub unsafe extern \"C\" fn isolane_b(\n    \
        poller: *mut Poller,\n    stream: *mut *mut Stream,\n) -> c_int {";
    assert_eq!(defined(text), Signatures::from(expected));
}

/// The header without its comments and directives, and with single spaces.
fn header() -> String {
    let text = fs::read_to_string(root("include/isolane.h")).unwrap();
    let mut code = String::new();
    for (at, part) in text.split("/*").enumerate() {
        code += if at == 0 { part } else { part.split_once("*/").expect("the end of a comment").1 };
    }
    let lines = code.lines().filter(|line| !line.starts_with('#'));
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

fn sources() -> String {
    let files = fs::read_dir(root("src")).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| fs::read_to_string(path).unwrap()).collect()
}

fn declared(header: &str) -> Signatures {
    let mut found = Signatures::new();
    for statement in header.split(';').filter(|statement| !statement.contains("typedef")) {
        let Some((head, arguments)) = statement.split_once('(') else { continue };
        let (result, name) = split_name(head);
        let arguments = arguments.trim_end_matches(')').split(',').filter(|argument| *argument != "void");
        let types = arguments.map(|argument| split_name(argument).0).chain([result]);
        found.insert(name.to_owned(), types.map(in_rust).collect());
    }
    found
}

/// Splits a declaration into its type and name.
fn split_name(declaration: &str) -> (&str, &str) {
    let at = declaration.rfind(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let (type_in_c, name) = declaration.split_at(at.expect("a type before a name") + 1);
    (type_in_c.trim().trim_start_matches("extern \"C\" {").trim(), name)
}

fn in_rust(type_in_c: &str) -> String {
    let stars = type_in_c.matches('*').count();
    let base = type_in_c.trim_end_matches('*').trim();
    let (is_const, base) = base.strip_prefix("const ").map_or((false, base), |base| (true, base));
    let base = match base {
        "int" => "c_int",
        "char" => "c_char",
        "size_t" => "usize",
        "ssize_t" => "isize",
        "uint32_t" => "u32",
        "uint64_t" => "u64",
        "int64_t" => "i64",
        "void" if stars > 0 => "c_void",
        "void" => "()",
        "isolane_volume" => "Volume",
        "isolane_queue" => "Queue",
        "isolane_memory" => "Memory",
        "isolane_request" => "Request",
        "isolane_completion" => "Completion",
        "isolane_session" => "Session",
        "isolane_options" => "StreamOptions",
        "isolane_stream" => "Stream",
        "isolane_listener" => "Listener",
        "isolane_poller" => "Poller",
        other => panic!("{other:?}: unknown type in the header"),
    };
    match (stars, is_const) {
        (0, false) => base.into(),
        (1, true) => format!("*const {base}"),
        (_, false) => format!("{}{base}", "*mut ".repeat(stars)),
        _ => panic!("{type_in_c:?}: unknown pointer type"),
    }
}

fn defined(sources: &str) -> Signatures {
    let mut found = Signatures::new();
    for definition in sources.split("extern \"C\" fn ").skip(1) {
        let (name, rest) = definition.split_once('(').expect("arguments");
        let (arguments, rest) = rest.split_once(')').expect("the end of the arguments");
        let result = rest.split('{').next().unwrap_or_default().trim();
        let arguments = arguments.split(',').filter_map(|argument| argument.split_once(':'));
        let types = arguments
            .map(|(_, argument)| argument.trim())
            .chain([result.strip_prefix("-> ").unwrap_or("()")]);
        found.insert(name.into(), types.map(str::to_owned).collect());
    }
    found
}

fn names(signatures: &Signatures) -> BTreeSet<String> {
    signatures.keys().cloned().collect()
}

fn built(library: &str) -> PathBuf {
    common::libraries().join(library)
}

fn exported(options: &[&str], library: &str) -> BTreeSet<String> {
    let library = built(library);
    let output = Command::new("nm").args(options).arg("--defined-only").arg(&library).output();
    let output = output.expect("nm, from the package of the C compiler");
    assert!(output.status.success(), "{}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned).collect()
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
