//! Commands in the documents: their subcommands, options, and files exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
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

/// Lines with a prompt in `console` blocks, and inline code that starts with the program's name.
fn commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut is_console = false;
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(language) => is_console = language == "console",
            None if is_console => commands.extend(line.strip_prefix("$ ").map(str::to_owned)),
            None => {}
        }
    }
    let prose: Vec<&str> = text.split("\n```").step_by(2).collect();
    for code in prose.iter().flat_map(|part| part.split('`').skip(1).step_by(2)) {
        commands.extend(code.starts_with("isolane ").then(|| code.replace('\n', " ")));
    }
    commands
}

fn help(subcommands: &[&str]) -> Option<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isolane"));
    let output = command.args(subcommands).arg("--help").output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// Words of the first command, without a comment.
fn words(command: &str) -> Vec<&str> {
    let command = command.split(" #").next().unwrap_or_default();
    command.split_whitespace().take_while(|word| !["&", "&&", "|", ">"].contains(word)).collect()
}

#[test]
fn commands_of_the_program_have_options_that_exist() {
    let mut helps: BTreeMap<String, String> = BTreeMap::new();
    let mut checked = 0;
    for path in documents() {
        for command in commands(&fs::read_to_string(&path).unwrap()) {
            let words = words(&command);
            let [program, subcommand, options @ ..] = &words[..] else { continue };
            let is_placeholder = |word: &str| word.starts_with('-') || word.chars().all(char::is_uppercase);
            if *program != "isolane" || is_placeholder(subcommand) {
                continue;
            }
            let at = format!("{}: `{command}`", path.display());
            // `config` and `verbs` only have subcommands, and `engine run` options of its own.
            let subcommands = match options {
                [action, ..] if ["config", "verbs"].contains(subcommand) || *action == "run" => {
                    vec![*subcommand, action]
                }
                _ => vec![*subcommand],
            };
            let name = subcommands.join(" ");
            if !helps.contains_key(&name) {
                let help = help(&subcommands).unwrap_or_else(|| panic!("{at}: no such subcommand"));
                helps.insert(name.clone(), help);
            }
            let help = &helps[&name];
            // Another program follows `--`.
            let own = options.iter().take_while(|option| **option != "--");
            for option in own.filter(|option| option.starts_with('-') && **option != "-") {
                let name = option.split(['=', '|', ',']).next().unwrap_or_default();
                let listed = |line: &str| line.split([' ', ',', '=', ':', ']', '[']).any(|word| word == name);
                assert!(help.lines().any(listed), "{at}: no option {name}");
                checked += 1;
            }
        }
    }
    assert!(checked > 10, "{checked}");
}

#[test]
fn commands_name_existing_files_and_packages() {
    let mut checked = 0;
    for path in documents() {
        for command in commands(&fs::read_to_string(&path).unwrap()) {
            let words = words(&command);
            for (at, word) in words.iter().enumerate() {
                let is_file =
                    ["scripts/", "tests/", "crates/", ".ci/"].iter().any(|dir| word.starts_with(dir));
                assert!(!is_file || root().join(word).exists(), "{}: `{command}`: no {word}", path.display());
                let package =
                    words.get(at + 1).and_then(|name| name.strip_prefix("isolane-")).unwrap_or_default();
                let is_package = *word == "-p" && !package.is_empty();
                let dirs = [root().join(format!("crates/isolane-{package}")), root().join(package)];
                let exists = dirs.iter().any(|dir| dir.join("Cargo.toml").exists());
                assert!(!is_package || exists, "{}: `{command}`: no {package}", path.display());
                checked += usize::from(is_file || is_package);
            }
        }
    }
    assert!(checked > 0);
}
