//! `isolane completions`: completions for a shell.
//!
//! The script that it prints calls this program for each completion, with [`VARIABLE`] set. So completions are those of the
//! installed program, and know the names of objects of running targets.

pub mod names;

use clap_complete::Shell;
use clap_complete::env::{CompleteEnv, Shells};

use crate::failure::{Context, Failure};

/// Print completions for a shell
///
/// For example: `isolane completions bash > ~/.local/share/bash-completion/completions/isolane`
///
/// The shell then asks the `isolane` in PATH, also for names of objects of a running target, such as namespace IDs.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the subcommand with the definition of the command line.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    let name = args.shell.to_string();
    match Shells::builtins().completer(&name) {
        _ if args.shell == Shell::Bash => script.extend_from_slice(BASH.as_bytes()),
        Some(shell) => shell
            .write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)
            .context("cannot print completions")?,
        None => return Err(Failure::new(name, "no completions for this shell")),
    }
    if args.shell == Shell::Zsh {
        script.extend_from_slice(ZSH_AUTOLOAD.as_bytes());
    }
    crate::output::write_stdout(&script)
}

/// Prints completions and ends the process if the script of a shell has called it.
pub fn complete_if_asked(cli: fn() -> clap::Command) {
    CompleteEnv::with_factory(cli).var(VARIABLE).complete();
}

const PROGRAM: &str = "isolane";
/// Name of the shell whose script calls the program.
const VARIABLE: &str = "ISOLANE_COMPLETE";

/// Zsh runs the script of `clap_complete` as the function `_isolane` at the first completion, if it is in `$fpath`.
const ZSH_AUTOLOAD: &str = r#"
if [[ $funcstack[1] == _isolane ]]; then
    _clap_dynamic_completer_isolane
fi
"#;

/// Unlike the script of `clap_complete`, this one completes names with colons, at which bash splits words. It leaves out
/// files with characters that bash would interpret; if no others are there, bash completes and quotes them itself.
const BASH: &str = r#"_isolane() {
    local line=${COMP_LINE:0:COMP_POINT} words word prefix found
    IFS=$' \t\n' read -a words <<< "$line"
    [[ $line != *[!\\][[:space:]] ]] || words+=("")
    # The word from its start, and the part of it before the last = or :, which bash keeps.
    words[-1]=${words[-1]#[\"\']}
    prefix=${words[-1]%"$2"}
    mapfile -t found < <(
        ISOLANE_COMPLETE=bash _CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) \
            isolane -- "${words[@]}" 2> /dev/null
    )
    COMPREPLY=()
    for word in "${found[@]#"$prefix"}"; do
        # A shell could execute other characters.
        [[ $word == *[!][:alnum:]._:/@+,=%[-]* ]] || COMPREPLY+=("$word")
    done
    [[ ${COMPREPLY[0]-} != *[=/,] ]] || compopt -o nospace
}
complete -o bashdefault -o default -o nosort -F _isolane isolane
"#;
