//! The environment in which a program has the devices.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use isolane_auth::KeyFile;
use isolane_reactor::SocketOptions;
use isolane_verbs::wire::Hello;
use isolane_verbs::{ProgressMode, SharedKey};

use super::{libraries, provider};
use crate::cores;
use crate::failure::{Failure, IoContext};
use crate::preload::Library;

/// Options of the devices.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Options of the sockets, as for `isolane serve --listen`, separated by commas
    #[arg(long, value_name = "OPTIONS")]
    socket: Option<SocketOptions>,
    /// Driver of the connections: `polling` (default), or `thread:CORE` for one thread of each process that never sleeps
    ///
    /// Threads that share a core take turns: if two processes name one core, or a thread of a program runs there, an
    /// operation takes milliseconds instead of microseconds. Give each process a core that nothing else uses.
    #[arg(long, value_name = "MODE")]
    progress: Option<ProgressMode>,
    /// TCP connections of each queue pair, 1 to 8; each end can have fewer (default: 1)
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=i64::from(Hello::MAX_LANES)), value_name = "N")]
    lanes: Option<u8>,
    /// Protect each segment with a CRC32C; one of both ends is enough
    #[arg(long)]
    crc: bool,
    /// File with the key that all peers have, as `isolane key gen` writes it (default: ISOLANE_VERBS_KEY)
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// TCP and UDP ports of the queue pairs (default: the system chooses)
    ///
    /// 256 queue pairs of a device share one. Each device that a process opens needs at least one for itself.
    #[arg(long, value_parser = parse_ports, value_name = "LOW-HIGH")]
    ports: Option<String>,
}

fn parse_ports(text: &str) -> Result<String, &'static str> {
    let range = text
        .split_once('-')
        .and_then(|(low, high)| Some((low.parse::<u16>().ok()?, high.parse::<u16>().ok()?)));
    match range {
        Some((low, high)) if 0 < low && low <= high => Ok(text.into()),
        _ => Err("not a range: write for example 20000-20007"),
    }
}

/// Variables of the environment.
pub struct Environment {
    /// Lists, separated by colons, and their further first parts.
    pub lists: Vec<(&'static str, OsString)>,
    pub settings: Vec<(&'static str, String)>,
}

impl Environment {
    /// Chooses the libraries: those with versions, if they can replace the installed ones, or the one without.
    pub fn new(options: &Options) -> Result<Environment, Failure> {
        let variable = || env::var(PROGRESS).ok()?.parse().ok();
        if let Some(progress) = options.progress.or_else(variable) {
            cores::check_progress(progress)?;
        }
        let preloaded = LIBRARY.find()?;
        let mut lists = vec![("ASAN_OPTIONS", OsString::from(PRELOAD_WITH_ASAN))];
        let is_chosen = env::var_os(LIBRARY.variable).is_some();
        match libraries::find() {
            Ok(directory) if !is_chosen => {
                lists.push(("LD_PRELOAD", directory.join(libraries::LIBRARY).into()));
                lists.push(("LD_LIBRARY_PATH", directory.into()));
            }
            found => {
                lists.push(("LD_PRELOAD", preloaded.into()));
                if let (Err(failure), false) = (found, is_chosen) {
                    log::warn!("{failure}; programs that open {} have no devices", libraries::LIBRARY);
                }
            }
        }
        match provider::find() {
            Ok(Some(directory)) => lists.push(("FI_PROVIDER_PATH", directory.into())),
            Ok(None) => {}
            Err(failure) => log::warn!("{failure}; programs of libfabric have no devices"),
        }
        let settings = [
            ("ISOLANE_VERBS_SOCKET", options.socket.as_ref().map(|socket| socket.to_string())),
            (PROGRESS, options.progress.map(|progress| progress.to_string())),
            ("ISOLANE_VERBS_LANES", options.lanes.map(|lanes| lanes.to_string())),
            ("ISOLANE_VERBS_CRC", options.crc.then(|| "1".into())),
            ("ISOLANE_VERBS_PORTS", options.ports.clone()),
        ];
        let settings = settings.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let mut settings: Vec<(&str, String)> = settings.collect();
        if let Some(file) = &options.key {
            // The program reports an error too late: at its first device.
            KeyFile::read(file).map_err(Failure::from_error)?;
            let path = std::path::absolute(file).io_context(format!("cannot find {}", file.display()))?;
            settings.push((SharedKey::VARIABLE, path.display().to_string()));
        }
        Ok(Environment { lists, settings })
    }

    /// Returns the lines of a shell that set the variables. They put the first parts in front of its own lists.
    pub fn to_shell(&self) -> String {
        let quote = |value: &OsStr| format!("'{}'", value.to_string_lossy().replace('\'', r"'\''"));
        let lists = self
            .lists
            .iter()
            .map(|(name, first)| format!("export {name}={}\"${{{name}:+:${name}}}\"\n", quote(first)));
        let settings =
            self.settings.iter().map(|(name, value)| format!("export {name}={}\n", quote(value.as_ref())));
        lists.chain(settings).collect()
    }
}

const PROGRESS: &str = "ISOLANE_VERBS_PROGRESS";

/// The library of the devices, without versions.
const LIBRARY: Library = Library {
    package: "isolane-ibverbs",
    names: ["libisolane_ibverbs.so", "libisolane-ibverbs.so"],
    variable: "ISOLANE_IBVERBS",
    description: "the library of the devices",
};

/// Without this option, AddressSanitizer ends programs that have a preloaded library.
const PRELOAD_WITH_ASAN: &str = "verify_asan_link_order=0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_a_range() {
        assert_eq!(parse_ports("20000-20007").as_deref(), Ok("20000-20007"));
        for wrong in ["", "1", "0-5", "5-4", "1-70000", "a-b"] {
            assert!(parse_ports(wrong).is_err(), "{wrong}");
        }
    }
}
