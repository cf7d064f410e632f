//! Names of objects of a running target, as completions of arguments.
//!
//! Without a target, or if it does not answer in time, there are none, and nothing is printed.
//!
//! Any host chooses its NQN, and a shell can execute what it completes. So names with characters that a shell could
//! interpret are left out, and only targets of this user and of root are asked.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter};
use isolane_config::{Config, Host, KeyInfo, Namespace, Port, Referral, Subsystem, Table};
use isolane_inspect::source::{control_sockets, get_within, is_socket_of_trusted_user};
use serde_json::Value;

use crate::config_file;

/// Returns NQNs of subsystems.
pub fn subsystems() -> Vec<CompletionCandidate> {
    let status = read("/v1/namespaces").unwrap_or_default();
    texts(&status["subsystems"]).filter_map(|nqn| candidate(nqn, None)).collect()
}

/// Returns namespace IDs of the subsystem that the command names, or of all, each with its volume.
pub fn namespaces() -> Vec<CompletionCandidate> {
    let status = read("/v1/namespaces").unwrap_or_default();
    let named = value_of("--subsystem");
    let is_in = |namespace: &&Value| named.as_ref().is_none_or(|nqn| namespace["subsystem"] == nqn.as_str());
    let namespaces = list(&status["namespaces"]).iter().filter(is_in);
    namespaces.filter_map(|one| candidate(one["nsid"].to_string(), one["volume"].as_str())).collect()
}

/// Returns names of objects of the kind in the command, such as `host`.
pub fn objects() -> Vec<CompletionCandidate> {
    match kind() {
        Some(kind) => names(&kind).into_iter().filter_map(|name| candidate(name, None)).collect(),
        None => Vec::new(),
    }
}

/// Returns NQNs of connected hosts, and addresses of their connections.
pub fn connections() -> Vec<CompletionCandidate> {
    let connections = read("/v1/connections").unwrap_or_default();
    let connections = list(&connections["connections"]);
    let mut hosts: Vec<&str> = connections.iter().filter_map(|one| one["host"].as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let addresses =
        connections.iter().filter_map(|one| candidate(one["address"].as_str()?, one["host"].as_str()));
    hosts.into_iter().filter_map(|host| candidate(host, None)).chain(addresses).collect()
}

/// Returns control sockets of targets, and other paths.
pub fn sockets(current: &OsStr) -> Vec<CompletionCandidate> {
    let found = sockets_of_targets().into_iter().map(CompletionCandidate::new);
    let found = found.filter(|path| starts_with(path.get_value(), current));
    found.chain(PathCompleter::any().complete(current)).collect()
}

/// Returns keys of the kind of object in the command, as `listen=`, and names for the keys that list them.
pub fn keys(current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let Some((key, value)) = current.split_once('=') else {
        let keys = kind().map(|kind| keys_of(&kind)).unwrap_or_default().iter();
        let keys = keys.filter(|info| info.name.starts_with(&*current));
        return keys.filter_map(|info| candidate(format!("{}=", info.name), Some(info.about))).collect();
    };
    let before = value.rfind(',').map_or("", |comma| &value[..=comma]);
    let names = match key {
        "ports" => names("port"),
        "hosts" => names("host").into_iter().chain(["any".to_owned()]).collect(),
        _ => Vec::new(),
    };
    let names = names.into_iter().filter(|name| name.starts_with(&value[before.len()..]));
    names.filter_map(|name| candidate(format!("{key}={before}{name}"), None)).collect()
}

fn keys_of(kind: &str) -> &'static [KeyInfo] {
    match kind {
        "subsystem" => Subsystem::KEYS,
        "host" => Host::KEYS,
        "port" => Port::KEYS,
        "referral" => Referral::KEYS,
        "namespace" => Namespace::KEYS,
        _ => &[],
    }
}

/// Returns names of objects of a kind.
fn names(kind: &str) -> Vec<String> {
    let config = || {
        let text = read("/v1/config")?["text"].as_str()?.to_owned();
        config_file::parse(Path::new("configuration"), &text).ok()
    };
    let Some(Config { ports, hosts, subsystems, referrals, .. }) = config() else { return Vec::new() };
    match kind {
        "subsystem" => subsystems.keys().map(|nqn| nqn.0.to_string()).collect(),
        "host" => hosts.keys().map(ToString::to_string).collect(),
        "port" => ports.keys().map(ToString::to_string).collect(),
        "referral" => referrals.keys().map(ToString::to_string).collect(),
        _ => Vec::new(),
    }
}

/// Asks the target that the command means: that of `--socket`, or the only one.
fn read(path: &str) -> Option<Value> {
    let socket = match value_of("--socket") {
        Some(path) => PathBuf::from(path),
        None => {
            let mut found = sockets_of_targets();
            found.pop().filter(|_| found.is_empty())?
        }
    };
    if !is_socket_of_trusted_user(&socket) {
        return None;
    }
    serde_json::from_slice(&get_within(&socket, path, MAX_REPLY, TIMEOUT).ok()?).ok()
}

fn sockets_of_targets() -> Vec<PathBuf> {
    let found = control_sockets().into_iter().filter(|socket| socket.kind == "serve");
    found.map(|socket| socket.path).collect()
}

/// Returns the words of the command, which follow the arguments of the shell's script.
fn words() -> impl Iterator<Item = String> {
    let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
    words.map(|word| word.to_string_lossy().into_owned())
}

/// Returns the value of an option in the command.
fn value_of(option: &str) -> Option<String> {
    let mut words = words();
    while let Some(word) = words.next() {
        match word.strip_prefix(option) {
            Some("") => return words.next(),
            Some(rest) if rest.starts_with('=') => return Some(rest[1..].to_owned()),
            _ => {}
        }
    }
    None
}

/// Returns the kind of objects of `isolane ctl KIND …`.
fn kind() -> Option<String> {
    words().find(|word| !keys_of(word).is_empty())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    list(value).iter().filter_map(Value::as_str)
}

/// Returns a completion, unless a shell could interpret its characters.
fn candidate(value: impl Into<String>, about: Option<&str>) -> Option<CompletionCandidate> {
    let value = Some(value.into()).filter(|value| is_plain(value))?;
    let about = about.map(|about| about.replace(char::is_control, " "));
    Some(CompletionCandidate::new(value).help(about.map(Into::into)))
}

/// Whether no shell interprets any character, and the text is no option.
fn is_plain(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@+,=%[]-".contains(&byte);
    !text.starts_with('-') && text.bytes().all(is_plain)
}

fn starts_with(text: &OsStr, start: &OsStr) -> bool {
    text.as_encoded_bytes().starts_with(start.as_encoded_bytes())
}

/// Time in which a target must answer: a user waits for it.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Limit of the response in bytes.
const MAX_REPLY: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_out_names_that_a_shell_could_interpret() {
        for plain in ["nqn.2014-08.org.example:a_b", "[fe80::1%2]:4420", "hosts=db1,any"] {
            assert!(candidate(plain, None).is_some(), "{plain}");
        }
        for other in
            ["a;b", "$(a)", "`a`", "a b", "a\nb", "a\\b", "a'b", "a\"b", "a*", "~a", "!a", "a#", "é", "-a"]
        {
            assert!(candidate(other, None).is_none(), "{other}");
        }
        let found = candidate("7", Some("a\tb\u{1b}c")).unwrap();
        assert_eq!(found.get_help().unwrap().to_string(), "a b c");
    }
}
