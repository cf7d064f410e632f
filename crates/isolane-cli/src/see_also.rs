//! Related pages of each manual page.
//!
//! A page names the page above it and those below it, and a page without any below names its neighbors. The pages of
//! [`OTHERS`] follow.

/// Other related pages, by command. A command that is not here has those of the command above it.
const OTHERS: &[(&str, &str)] = &[
    ("isolane", "nvme(1)"),
    ("isolane-bench", "isolane-serve(1), fio(1)"),
    ("isolane-completions", "bash(1), zsh(1), fish(1)"),
    ("isolane-config", "isolane-serve(1), isolane-ctl(1)"),
    ("isolane-copy", "isolane-serve(1), isolane-info(1), dd(1)"),
    ("isolane-ctl", "isolane-serve(1), isolane-config(1)"),
    ("isolane-ctl-host", "isolane-config(1), isolane-key(1)"),
    ("isolane-ctl-upgrade", "isolane-serve(1)"),
    ("isolane-discover", "isolane-info(1), nvme-discover(1)"),
    ("isolane-doctor", "isolane-serve(1), isolane-explain(1)"),
    ("isolane-engine", "isolane-bench(1)"),
    ("isolane-explain", "isolane-serve(1), isolane-slow(1), isolane-heatmap(1), isolane-doctor(1)"),
    ("isolane-export", "isolane-serve(1), nbdinfo(1), nbdcopy(1), qemu-img(1), qemu(1), nbd-client(8)"),
    ("isolane-heatmap", "isolane-top(1), isolane-serve(1)"),
    ("isolane-info", "isolane-discover(1), nvme-id-ctrl(1), nvme-id-ns(1)"),
    ("isolane-key", "isolane-serve(1), isolane-config(1), nvme-gen-dhchap-key(1)"),
    ("isolane-light", "isolane-explain(1), isolane-top(1)"),
    ("isolane-man", "man(1)"),
    (
        "isolane-serve",
        "isolane-config(1), isolane-ctl(1), isolane-info(1), isolane-bench(1), nvme-connect(1)",
    ),
    ("isolane-slow", "isolane-serve(1), isolane-snapshot(1)"),
    ("isolane-snapshot", "isolane-serve(1), isolane-slow(1)"),
    ("isolane-top", "isolane-heatmap(1), isolane-serve(1)"),
    ("isolane-trace", "isolane-slow(1), isolane-top(1)"),
    ("isolane-verbs", "isolane-bench(1)"),
    ("isolane-verbs-bench", "isolane-bench(1), ib_send_lat(1)"),
];

/// Returns the pages related to that of `command`. `above` are the commands that it belongs to, from the program on.
pub fn related(command: &clap::Command, above: &[&clap::Command]) -> String {
    let names: Vec<String> = above
        .iter()
        .copied()
        .chain([command])
        .scan(String::new(), |name, next| Some(join(name, next)))
        .collect();
    let Some((name, names)) = names.split_last() else { return String::new() };
    let below = |command: &clap::Command, name: &str| -> Vec<String> {
        command.get_subcommands().map(|next| format!("{name}-{}", next.get_name())).collect()
    };
    let mut pages: Vec<String> = names.last().cloned().into_iter().collect();
    pages.extend(below(command, name));
    // The neighbors of `isolane serve` are all commands.
    if let ([.., _, parent], [.., _, parent_name]) = (above, names)
        && !command.has_subcommands()
    {
        pages.extend(below(parent, parent_name));
    }
    let of = |name: &String| OTHERS.iter().find(|(command, _)| command == name).map(|(_, others)| *others);
    let others = of(name).or_else(|| names.iter().skip(1).rev().find_map(of)).unwrap_or_default();
    let mut pages: Vec<String> = pages.into_iter().map(|page| format!("{page}(1)")).collect();
    pages.extend(others.split(", ").filter(|other| !other.is_empty()).map(str::to_owned));
    let own = format!("{name}(1)");
    let mut listed = Vec::new();
    for page in pages {
        if page != own && !listed.contains(&page) {
            listed.push(page);
        }
    }
    listed.join(", ")
}

/// Adds the next command to the name of a page.
fn join(name: &mut String, next: &clap::Command) -> String {
    if !name.is_empty() {
        name.push('-');
    }
    *name += next.get_name();
    name.clone()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    /// Related pages by page.
    fn all() -> BTreeMap<String, String> {
        fn add<'a>(
            command: &'a clap::Command,
            above: &[&'a clap::Command],
            found: &mut BTreeMap<String, String>,
        ) {
            let path = [above, &[command]].concat();
            let name: Vec<&str> = path.iter().map(|command| command.get_name()).collect();
            found.insert(name.join("-"), related(command, above));
            command.get_subcommands().for_each(|next| add(next, &path, found));
        }
        let mut found = BTreeMap::new();
        let mut program = Cli::command().disable_help_subcommand(true);
        program.build();
        add(&program, &[], &mut found);
        found
    }

    #[test]
    fn every_page_names_pages_that_exist() {
        let all = all();
        for (page, related) in &all {
            assert!(!related.is_empty(), "{page}");
            for other in related.split(", ").filter(|other| other.starts_with("isolane")) {
                let other = other.strip_suffix("(1)").unwrap();
                assert!(all.contains_key(other) && other != page, "{page}: {other}");
            }
        }
        for (page, _) in OTHERS {
            assert!(all.contains_key(*page), "{page}");
        }
    }

    #[test]
    fn page_names_those_above_and_below() {
        let all = all();
        assert_eq!(all["isolane-man"], "isolane(1), man(1)");
        assert_eq!(
            all["isolane-ctl-host-add"],
            "isolane-ctl-host(1), isolane-ctl-host-remove(1), isolane-ctl-host-set(1), isolane-config(1), isolane-key(1)"
        );
        assert!(
            all["isolane-ctl"].starts_with("isolane(1), isolane-ctl-status(1), "),
            "{}",
            all["isolane-ctl"]
        );
        assert!(all["isolane"].ends_with("isolane-completions(1), nvme(1)"), "{}", all["isolane"]);
    }
}
