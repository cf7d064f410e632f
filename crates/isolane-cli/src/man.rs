//! `isolane man`: manual pages, generated from the definition of the command line.

use std::path::{Path, PathBuf};

use crate::failure::{Context, Failure};
use crate::output;
use crate::{sections, see_also};

/// Write the manual pages
///
/// Without a directory, prints the page of `isolane`. With a directory, writes a page for the program and for each
/// subcommand, as `isolane.1`, `isolane-serve.1`, and so on.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write every page into this directory
    #[arg(value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

/// Runs the subcommand with the definition of the command line.
pub fn run(args: &Args, cli: clap::Command) -> Result<(), Failure> {
    match &args.directory {
        None => {
            let text = page(cli, &[]).context("cannot make the manual page")?;
            output::write_stdout(&text)
        }
        Some(directory) => write_pages(directory, cli),
    }
}

fn write_pages(directory: &Path, cli: clap::Command) -> Result<(), Failure> {
    let what = || format!("cannot write manual pages into {}", directory.display());
    let failure = |error: std::io::Error| Failure::from_io(what(), &error);
    std::fs::create_dir_all(directory).map_err(failure)?;
    let mut program = cli.disable_help_subcommand(true);
    program.build();
    let mut commands = vec![(&program, Vec::new())];
    while let Some((command, above)) = commands.pop() {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let text = page(command.clone(), &above).map_err(failure)?;
        std::fs::write(directory.join(format!("{name}.1")), text).map_err(failure)?;
        let path = [&above[..], &[command]].concat();
        commands.extend(command.get_subcommands().map(|next| (next, path.clone())));
    }
    Ok(())
}

/// Returns the page of one command, with the name and version of the program, but without its commit. `above` are the
/// commands that it belongs to.
fn page(command: clap::Command, above: &[&clap::Command]) -> std::io::Result<Vec<u8>> {
    let see_also = see_also::related(&command, above);
    let command = command.version(env!("CARGO_PKG_VERSION"));
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let has_subcommands = command.has_subcommands();
    let source = concat!("isolane ", env!("CARGO_PKG_VERSION"));
    let man = clap_mangen::Man::new(command).source(source).manual("Isolane");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_subcommands {
        man.render_subcommands_section(&mut page)?;
    }
    sections::write(name.strip_prefix("isolane-").unwrap_or(&name), &see_also, &mut page)?;
    man.render_version_section(&mut page)?;
    Ok(escape(&page))
}

/// Replaces characters beyond ASCII, which roff does not read, by their names.
fn escape(page: &[u8]) -> Vec<u8> {
    let mut escaped = String::new();
    for char in String::from_utf8_lossy(page).chars() {
        if char.is_ascii() { escaped.push(char) } else { escaped += &format!("\\[u{:04X}]", u32::from(char)) }
    }
    escaped.into_bytes()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn every_subcommand_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        write_pages(directory.path(), Cli::command()).unwrap();
        for command in Cli::command().get_subcommands() {
            let page = directory.path().join(format!("isolane-{}.1", command.get_name()));
            let text = std::fs::read_to_string(&page).unwrap();
            for section in ["\"EXIT STATUS\"", "ENVIRONMENT", "FILES", "EXAMPLES", "\"SEE ALSO\""] {
                assert_eq!(
                    text.matches(&format!("\n.SH {section}\n")).count(),
                    1,
                    "{section} of {}",
                    page.display()
                );
            }
        }
    }

    #[test]
    fn characters_beyond_ascii_are_named() {
        assert_eq!(escape("MiB, …".as_bytes()), b"MiB, \\[u2026]");
    }

    #[test]
    fn committed_pages_are_current() {
        let made = tempfile::tempdir().unwrap();
        write_pages(made.path(), Cli::command()).unwrap();
        let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man");
        assert_eq!(names(made.path()), names(&committed));
        for name in names(&committed) {
            let read = |directory: &Path| std::fs::read_to_string(directory.join(&name)).unwrap();
            assert!(
                read(made.path()) == read(&committed),
                "{name} is out of date: run `cargo run -- man docs/man`"
            );
        }
    }
}
