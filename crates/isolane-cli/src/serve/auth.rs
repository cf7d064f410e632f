//! Keys of hosts from a configuration file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use isolane_auth::{Key, KeyFile, KeyFileError};
use isolane_config::{AuthGroup, AuthHash, AuthKeys, Config, Host, KeySource, Require, Subsystem};
use isolane_target::{AuthConfig, HostKeys, KeyPair, RequiredAuth};
use isolane_wire::Nqn;
use isolane_wire::auth::{DhGroup, Hash};

use crate::failure::Failure;

/// The keys of a running target, which change with its file. Its `Debug` shows no key.
#[derive(Debug)]
pub struct LiveKeys(Mutex<Arc<ConfiguredKeys>>);

impl LiveKeys {
    fn current(&self) -> Arc<ConfiguredKeys> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the keys, for Connects and repeated authentication from now on.
    pub fn set(&self, keys: Arc<ConfiguredKeys>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// Returns the hosts whose files have other keys now, under the names that they had before.
    pub fn replaced<'a>(&self, old: &Config, new: &'a Config, keys: &ConfiguredKeys) -> Vec<&'a Host> {
        let current = self.current();
        let has_same_files = |host: &&Host| {
            let before = old.hosts.get(&host.name).filter(|before| before.nqn == host.nqn);
            before.is_some_and(|it| {
                (&it.auth_key, &it.auth_target_key) == (&host.auth_key, &host.auth_target_key)
            })
        };
        let is_replaced = |host: &&Host| match (current.keys.get(&host.nqn.0), keys.keys.get(&host.nqn.0)) {
            (Some(old), Some(new)) => !old.iter().zip(new).all(|(old, new)| is_same_pair(old, new)),
            _ => false,
        };
        new.hosts.values().filter(has_same_files).filter(is_replaced).collect()
    }

    /// Adds keys and required proofs to those of subsystems and hosts that are about to go, so that these are not open
    /// in between.
    pub fn add(&self, keys: &ConfiguredKeys) {
        self.set(Arc::new(self.current().with(keys)));
    }
}

impl HostKeys for LiveKeys {
    fn required(&self, host: Option<&Nqn>, subsystem: &Nqn) -> Option<RequiredAuth> {
        self.current().required(host, subsystem)
    }
}

/// Keys of hosts, and the proofs that subsystems require. Its `Debug` shows no key.
#[derive(Clone, Debug)]
pub struct ConfiguredKeys {
    keys: HashMap<Nqn, Vec<KeyPair>>,
    subsystems: HashMap<Nqn, RequiredProofs>,
    discovery: Require,
}

/// Proofs that a subsystem requires.
#[derive(Clone, Debug)]
struct RequiredProofs {
    hosts: HashMap<Nqn, Require>,
    /// Of hosts without a table.
    of_others: Require,
}

impl RequiredProofs {
    fn new(config: &Config, subsystem: &Subsystem) -> RequiredProofs {
        let of_host = |host: &Host| (host.nqn.0, config.required(Some(host), subsystem));
        RequiredProofs {
            hosts: config.hosts.values().map(of_host).collect(),
            of_others: config.required(None, subsystem),
        }
    }

    fn of(&self, host: Option<&Nqn>) -> Require {
        host.and_then(|host| self.hosts.get(host)).copied().unwrap_or(self.of_others)
    }
}

impl ConfiguredKeys {
    /// Reads all keys of a configuration.
    pub fn read(config: &Config) -> Result<ConfiguredKeys, Failure> {
        let read = |host: &Host| Ok((host.nqn.0, read_keys(host)?));
        let proofs = |one: &Subsystem| (one.nqn.0, RequiredProofs::new(config, one));
        Ok(ConfiguredKeys {
            keys: config.hosts.values().map(read).collect::<Result<_, Failure>>()?,
            subsystems: config.subsystems.values().map(proofs).collect(),
            discovery: config.server.discovery_require.unwrap_or(Require::None),
        })
    }

    /// Returns these with others, which have precedence.
    fn with(&self, others: &ConfiguredKeys) -> ConfiguredKeys {
        let mut all = ConfiguredKeys { discovery: others.discovery, ..self.clone() };
        all.keys.extend(others.keys.iter().map(|(nqn, keys)| (*nqn, keys.clone())));
        for (nqn, proofs) in &others.subsystems {
            let merged = all.subsystems.entry(*nqn).or_insert_with(|| proofs.clone());
            merged.hosts.extend(&proofs.hosts);
            merged.of_others = proofs.of_others;
        }
        all
    }

    fn required(&self, host: Option<&Nqn>, subsystem: &Nqn) -> Option<RequiredAuth> {
        let required = match self.subsystems.get(subsystem) {
            _ if subsystem.is_discovery() => self.discovery,
            Some(proofs) => proofs.of(host),
            None => Require::None,
        };
        let keys = || host.and_then(|host| self.keys.get(host)).cloned().unwrap_or_default();
        let is_mutual = required == Require::AuthBoth;
        (required != Require::None).then(|| RequiredAuth { keys: keys(), is_mutual })
    }
}

fn is_same_pair(one: &KeyPair, other: &KeyPair) -> bool {
    let is_same =
        |one: &Key, other: &Key| one.transform_hash() == other.transform_hash() && one.is_same_secret(other);
    let are_controllers_same = match (&one.controller, &other.controller) {
        (Some(one), Some(other)) => is_same(one, other),
        (one, other) => one.is_none() && other.is_none(),
    };
    is_same(&one.host, &other.host) && are_controllers_same
}

/// Reads all keys of the file.
pub fn load(config: &Config) -> Result<(Arc<LiveKeys>, AuthConfig), Failure> {
    let keys = Arc::new(LiveKeys(Mutex::new(Arc::new(ConfiguredKeys::read(config)?))));
    let mut auth = AuthConfig::new(Arc::<LiveKeys>::clone(&keys));
    if let Some(hashes) = &config.server.auth_hashes {
        auth.policy.hashes = hashes.0.iter().map(|hash| hash_of(*hash)).collect();
    }
    if let Some(groups) = &config.server.auth_groups {
        auth.policy.groups = groups.0.iter().map(|group| group_of(*group)).collect();
    }
    if let Some(within) = config.server.auth_within {
        auth.timeout = within.get();
    }
    Ok((keys, auth))
}

/// The target's key at the place of each key, or the last one.
fn read_keys(host: &Host) -> Result<Vec<KeyPair>, Failure> {
    let read_all = |keys: &Option<AuthKeys>, name| -> Result<Vec<Key>, Failure> {
        let sources = keys.iter().flat_map(|keys| &keys.0);
        let failed = |error: KeyFileError| {
            let failure = Failure::new(format!("cannot use {name} of host {}", host.name), &error);
            if error.is_missing() { failure.may_end() } else { failure }
        };
        sources.map(|source| read(source).map_err(failed)).collect()
    };
    let keys = read_all(&host.auth_key, "auth-key")?;
    let target_keys = read_all(&host.auth_target_key, "auth-target-key")?;
    let target_key = |at: usize| target_keys.get(at).or(target_keys.last()).cloned();
    Ok(keys.into_iter().enumerate().map(|(at, host)| KeyPair { host, controller: target_key(at) }).collect())
}

fn read(source: &KeySource) -> Result<Key, KeyFileError> {
    match source {
        KeySource::File(path) => KeyFile::read(path.as_path()),
        KeySource::Credential(name) => KeyFile::read_credential(name.as_str()),
    }
}

fn hash_of(hash: AuthHash) -> Hash {
    match hash {
        AuthHash::Sha256 => Hash::Sha256,
        AuthHash::Sha384 => Hash::Sha384,
        AuthHash::Sha512 => Hash::Sha512,
    }
}

fn group_of(group: AuthGroup) -> DhGroup {
    match group {
        AuthGroup::Null => DhGroup::Null,
        AuthGroup::Ffdhe2048 => DhGroup::Ffdhe2048,
        AuthGroup::Ffdhe3072 => DhGroup::Ffdhe3072,
        AuthGroup::Ffdhe4096 => DhGroup::Ffdhe4096,
        AuthGroup::Ffdhe6144 => DhGroup::Ffdhe6144,
        AuthGroup::Ffdhe8192 => DhGroup::Ffdhe8192,
    }
}
