//! Warnings about access from other machines: who can write which subsystem, and how to end that.

use std::net::SocketAddr;

use isolane_config::{Config, Gap, gaps};

use super::subsystem::Opened;
use crate::invocation::program_name;

/// Logs the gaps of a file: one line for all subsystems that hosts on other machines use without authentication, and one
/// for each other gap.
pub fn warn_of_gaps(config: &Config) {
    let gaps = gaps(config);
    if let Some(line) = open_line(&gaps, &program_name()) {
        log::warn!("{line}");
    }
    gaps.iter().filter(|gap| gap.commands.is_none()).for_each(|gap| log::warn!("{gap}"));
}

/// Returns the line about open subsystems: the first one, and the number of the others.
fn open_line(gaps: &[Gap], program: &str) -> Option<String> {
    let mut open = gaps.iter().filter_map(|gap| Some((gap, gap.commands.as_ref()?)));
    let (gap, [first, second]) = open.next()?;
    let others = match open.count() {
        0 => String::new(),
        count => format!(" ({count} more in `{program} config check FILE`)"),
    };
    Some(format!("{}{others}; run `{program} {first}` and `{program} {second}`", gap.text))
}

/// Logs the addresses that other machines can reach. Without a file, all hosts that the options allow have access.
pub fn warn(listeners: &[SocketAddr], subsystems: &[Opened], has_file: bool) {
    let open: Vec<String> =
        listeners.iter().filter(|at| !at.ip().is_loopback()).map(SocketAddr::to_string).collect();
    if open.is_empty() {
        return;
    }
    let at = open.join(", ");
    match subsystems {
        [Opened { subsystem, .. }] if !has_file => {
            let hosts = match subsystem.allowed_hosts {
                None => "any host",
                Some(_) => "a host that uses an allowed name",
            };
            let program = program_name();
            log::warn!(
                "subsystem {}: {hosts} reads and writes it without authentication or encryption on {at}; run \
                 `{program} key gen KEY`, and `{program} serve --config FILE` with that key, where `{program} config dump` \
                 with these arguments prints FILE",
                subsystem.nqn
            );
        }
        _ => log::warn!("{at} is reachable from other machines, without encryption"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(name: &str, commands: Option<[String; 2]>) -> Gap {
        Gap { is_open: commands.is_some(), text: format!("{name} is open"), remedy: String::new(), commands }
    }

    fn open(name: &str) -> Gap {
        gap(name, Some(["key gen K".to_owned(), format!("ctl host set {name} auth-key=file:K")]))
    }

    #[test]
    fn one_line_names_the_first_subsystem_and_its_commands() {
        let line = |gaps: &[Gap]| open_line(gaps, "isolane");
        assert_eq!(line(&[gap("a", None)]), None);
        let one = "a is open; run `isolane key gen K` and `isolane ctl host set a auth-key=file:K`";
        assert_eq!(line(&[open("a"), gap("b", None)]).as_deref(), Some(one));
        let more = line(&[open("a"), open("b"), open("c")]).unwrap();
        assert!(more.starts_with("a is open (2 more in `isolane config check FILE`); run"), "{more}");
    }
}
