//! State that outlives a target: IDs that were used, and the generation of the discovery log.
//!
//! Invariant: the file has a number before a host sees it. A number that is recorded for a change that fails stays
//! recorded.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use isolane_config::Config;
use isolane_target::TargetPort;
use isolane_volume::spec::MAX_NSID;

use super::handover;
use super::state_file::{self, Content, Subsystem};
use crate::failure::Failure;

/// The state of a target, which has its directory alone.
pub struct State {
    directory: PathBuf,
    lock: File,
    /// Content of the file.
    content: Mutex<Content>,
}

impl State {
    /// Locks the directory, unless the program before has passed its lock on, and reads the state.
    pub fn open(directory: &Path, inherited: Option<File>) -> Result<State, Failure> {
        let lock = state_file::lock(directory, inherited)?;
        let content = state_file::read(directory)?.unwrap_or_else(|| {
            log::info!("{}: no state yet", directory.display());
            Content::new()
        });
        Ok(State { directory: directory.to_owned(), lock, content: Mutex::new(content) })
    }

    /// Records everything that a target shows at its start. Returns the first generation of the discovery log. A target
    /// that continues another one shows nothing new, so nothing is written then.
    pub fn start(&self, config: &Config, is_resumed: bool) -> Result<u64, Failure> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut generation = 0;
        self.change(|content| {
            generation = if is_resumed { content.generation } else { content.generation.max(since_epoch) };
            content.generation = if is_resumed { generation } else { generation + GENERATIONS };
            add_ports(content, config)?;
            add_nsids(content, config);
            Ok(())
        })?;
        Ok(generation)
    }

    /// Records the ports of a new configuration, and the generations of the discovery log that lead there from the
    /// present one.
    pub fn prepare(&self, generation: u64, old: &Config, new: &Config) -> Result<(), Failure> {
        // Hosts and ports of each subsystem change; each port comes and goes again; the referrals change.
        let steps = |config: &Config| 2 * (config.subsystems.len() + config.ports.len()) + 1;
        let last = generation + (steps(old) + steps(new)) as u64;
        self.change(|content| {
            if content.generation <= last {
                content.generation = last + GENERATIONS;
            }
            add_ports(content, new)
        })
    }

    /// Gives ports the IDs of their names.
    pub fn number(&self, ports: &mut [TargetPort]) {
        let content = self.content();
        for port in ports {
            port.id = port.name.as_ref().and_then(|name| content.ports.get(name).copied());
        }
    }

    /// Records the IDs of all namespaces.
    pub fn add_namespaces(&self, config: &Config) -> Result<(), Failure> {
        self.change(|content| {
            add_nsids(content, config);
            Ok(())
        })
    }

    /// Records the ID of a namespace that is not in the file.
    pub fn add_namespace(&self, nqn: &str, nsid: u32) -> Result<(), Failure> {
        self.change(|content| {
            add_nsid(content, nqn, nsid);
            Ok(())
        })
    }

    /// Returns an ID that no namespace of a subsystem has had, above all others.
    pub fn free_nsid(&self, nqn: &str) -> Result<u32, Failure> {
        let next = self.content().subsystems.get(nqn).map_or(1, |subsystem| subsystem.next_nsid);
        if next <= MAX_NSID {
            return Ok(next);
        }
        let reason = format!("the IDs of {nqn} up to {MAX_NSID} were used");
        Err(Failure::new("cannot number the namespace", reason)
            .with_hint("name an ID that is free, with nsid=N"))
    }

    /// Returns the lock for another program.
    pub fn inheritable_lock(&self) -> io::Result<OwnedFd> {
        handover::inheritable(&self.lock)
    }

    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change, unless the file cannot have it.
    fn change(&self, change: impl FnOnce(&mut Content) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut content = self.content();
        let mut next = content.clone();
        change(&mut next)?;
        if next != *content {
            state_file::write(&self.directory, &next)?;
            *content = next;
        }
        Ok(())
    }
}

/// Checks a state, and changes nothing.
pub fn check(config: &Config) -> Result<(), Failure> {
    config.server.state.as_ref().map_or(Ok(()), |directory| state_file::read(directory.as_path()).map(drop))
}

/// Returns the reason why this user cannot check a state, if it has no permission to read it.
pub fn unreadable(config: &Config) -> Option<String> {
    let directory = config.server.state.as_ref()?.as_path();
    let error = state_file::path(directory).metadata().err()?;
    let lacks_permission = error.kind() == ErrorKind::PermissionDenied;
    lacks_permission.then(|| format!("{}: {error}; check it as the user of the target", directory.display()))
}

fn add_ports(content: &mut Content, config: &Config) -> Result<(), Failure> {
    for name in config.ports.keys() {
        if content.ports.contains_key(name.as_str()) {
            continue;
        }
        let last = content.ports.values().max().copied().unwrap_or(0);
        let next = last.checked_add(1).ok_or_else(|| {
            Failure::new(format!("cannot number port {name}"), "all IDs were used")
                .with_hint("use the name of a removed port")
        })?;
        content.ports.insert(name.as_str().to_owned(), next);
    }
    Ok(())
}

fn add_nsids(content: &mut Content, config: &Config) {
    for (nqn, subsystem) in &config.subsystems {
        let nsids = subsystem.namespaces.iter().flat_map(|all| all.keys());
        add_nsid(content, nqn.0.as_str(), nsids.map(|nsid| nsid.get()).max().unwrap_or(0));
    }
}

fn add_nsid(content: &mut Content, nqn: &str, nsid: u32) {
    match content.subsystems.get_mut(nqn) {
        Some(subsystem) => subsystem.next_nsid = subsystem.next_nsid.max(nsid + 1),
        None => _ = content.subsystems.insert(nqn.to_owned(), Subsystem { next_nsid: nsid + 1 }),
    }
}

/// Generations that are recorded at a time, so that few changes write the file.
const GENERATIONS: u64 = 1000;

#[cfg(test)]
mod tests {
    use std::fs;

    use isolane_volumes::Kinds;

    use super::*;

    const A: &str = "nqn.2014-08.org.example:a";

    /// A configuration with ports, and subsystem A with namespaces.
    fn config(ports: &[&str], nsids: &[u32]) -> Config {
        let port = |name: &&str| format!("[[port]]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\n");
        let namespace = |nsid: &u32| format!("{{ nsid = {nsid}, volume = \"mem:{nsid}M\" }},");
        let text = format!(
            "{}[[subsystem]]\nnqn = \"{A}\"\nports = [\"{}\"]\nhosts = \"any\"\nnamespace = [{}]\n",
            ports.iter().map(port).collect::<String>(),
            ports[0],
            nsids.iter().map(namespace).collect::<String>(),
        );
        Config::parse(&text, "test", &Kinds::default()).unwrap()
    }

    fn ids(state: &State, names: &[&str]) -> Vec<Option<u16>> {
        let port = |name: &&str| TargetPort::named(name, "127.0.0.1:0".parse().unwrap());
        let mut ports: Vec<_> = names.iter().map(port).collect();
        state.number(&mut ports);
        ports.into_iter().map(|port| port.id).collect()
    }

    #[test]
    fn numbers_outlive_the_target() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path(), None).unwrap();
        let first = state.start(&config(&["left", "right"], &[1, 3]), false).unwrap();
        assert_eq!(ids(&state, &["left", "right", "middle"]), [Some(1), Some(2), None]);
        assert_eq!(state.free_nsid(A).unwrap(), 4);
        state.add_namespace(A, 4).unwrap();
        assert_eq!(state.free_nsid("nqn.2014-08.org.example:b").unwrap(), 1);
        state.prepare(first + 10, &config(&["left"], &[1]), &config(&["right", "middle"], &[9])).unwrap();
        assert_eq!(state.free_nsid(A).unwrap(), 5, "the change can fail");
        drop(state);

        let state = State::open(directory.path(), None).unwrap();
        let second = state.start(&config(&["right", "left"], &[]), false).unwrap();
        assert!(second >= first + GENERATIONS, "{first}, {second}");
        assert_eq!(ids(&state, &["left", "right", "middle"]), [Some(1), Some(2), Some(3)]);
        assert_eq!(state.free_nsid(A).unwrap(), 5);
        state.add_namespaces(&config(&["left"], &[1024])).unwrap();
        let error = state.free_nsid(A).unwrap_err().to_string();
        assert!(error.contains(A) && error.contains("name an ID that is free, with nsid=N"), "{error}");
    }

    #[test]
    fn generations_are_recorded_before_they_are_used() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path(), None).unwrap();
        let config = config(&["left"], &[1]);
        let first = state.start(&config, false).unwrap();
        let recorded = || state_file::read(directory.path()).unwrap().unwrap().generation;
        for generation in first..first + 3 * GENERATIONS {
            state.prepare(generation, &config, &config).unwrap();
            assert!(recorded() > generation + 2);
        }
        drop(state);
        let state = State::open(directory.path(), None).unwrap();
        assert!(state.start(&config, false).unwrap() > first + 3 * GENERATIONS);
    }

    #[test]
    fn number_that_is_not_recorded_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path(), None).unwrap();
        state.start(&config(&["left"], &[1]), false).unwrap();
        let obstacle = directory.path().join(".state.json.new");
        fs::create_dir(&obstacle).unwrap();
        assert!(state.add_namespace(A, 2).is_err());
        assert!(state.prepare(0, &Config::default(), &config(&["right"], &[])).is_err());
        assert_eq!((state.free_nsid(A).unwrap(), ids(&state, &["right"])), (2, vec![None]));
        fs::remove_dir(&obstacle).unwrap();
        state.add_namespace(A, 2).unwrap();
        assert_eq!(state.free_nsid(A).unwrap(), 3);
    }
}
