//! Code blocks of the documents: doctests of this crate compile Rust, this test compiles C, and
//! `crates/isolane-cli/tests/snippets.rs` checks shell commands.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn documents() -> Vec<PathBuf> {
    let in_dir = |dir: &str| {
        let entries = fs::read_dir(root().join(dir)).unwrap();
        entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "md"))
    };
    ["", "docs", "tests"].into_iter().flat_map(in_dir).collect()
}

/// Fenced blocks of a document: language and lines.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    for (at, part) in text.split("\n```").enumerate().filter(|(at, _)| at % 2 == 1) {
        let (language, lines) = part.split_once('\n').unwrap_or_else(|| panic!("block {at} has no end"));
        blocks.push((language.to_owned(), format!("{lines}\n")));
    }
    blocks
}

#[test]
fn every_document_is_compiled() {
    let compiled = fs::read_to_string(root().join("tests/src/lib.rs")).unwrap();
    let mut rust = 0;
    for path in documents() {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        let included = [format!("\"../../{name}\""), name.replace("tests/", "\"../") + "\""];
        assert!(
            included.iter().any(|included| compiled.contains(included)),
            "{name} is not in tests/src/lib.rs"
        );
        for (language, _) in blocks(&fs::read_to_string(&path).unwrap()) {
            // The tests of `isolane-config` read TOML, and `tests/wheel.sh` runs Python.
            let is_known = ["rust", "rust,no_run", "c", "console", "python", "text", "toml"]
                .contains(&language.as_str());
            assert!(is_known, "{name}: a block of {language:?}");
            rust += usize::from(language.starts_with("rust"));
        }
    }
    assert!(rust >= 2, "the README has Rust");
}

#[test]
fn c_snippets_compile() {
    let header = fs::read_to_string(root().join("crates/isolane-capi/include/isolane.h")).unwrap();
    let mut snippets: Vec<String> = documents()
        .iter()
        .flat_map(|path| blocks(&fs::read_to_string(path).unwrap()))
        .filter_map(|(language, lines)| (language == "c").then_some(lines))
        .collect();
    let usage = header_snippets(&header);
    assert!(
        usage.len() == 2 && usage.iter().all(|lines| lines.len() > 5),
        "a snippet for volumes, one for streams"
    );
    snippets.extend(usage.iter().map(|lines| format!("void snippet(void)\n{{\n{}\n}}\n", lines.join("\n"))));
    let dir = tempfile::tempdir().unwrap();
    for snippet in snippets {
        let source = dir.path().join("snippet.c");
        fs::write(&source, format!("#include <isolane.h>\n#include <stdio.h>\n{snippet}")).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
        compiler.arg(root().join("crates/isolane-capi/include")).arg(&source);
        let output = compiler.output().expect("install a C compiler");
        assert!(output.status.success(), "{snippet}{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Returns the code in the comment at the start of the header: indented lines that declare a variable first.
fn header_snippets(header: &str) -> Vec<Vec<&str>> {
    let mut snippets: Vec<Vec<&str>> = Vec::new();
    let mut is_code = false;
    for line in header.lines().take_while(|line| !line.starts_with("#ifndef")) {
        let code = line.strip_prefix(" *     ");
        if code.is_some_and(|code| !is_code && code.starts_with("isolane_")) {
            snippets.push(Vec::new());
            is_code = true;
        }
        is_code &= code.is_some();
        if let (true, Some(lines), Some(code)) = (is_code, snippets.last_mut(), code) {
            lines.push(code);
        }
    }
    snippets
}
