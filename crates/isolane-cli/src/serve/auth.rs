//! Keys of hosts from a configuration file.

use std::collections::HashMap;
use std::sync::Arc;

use isolane_auth::{Key, KeyFile};
use isolane_config::{AuthGroup, AuthHash, AuthKeys, Config, Host, KeySource, Require, Subsystem};
use isolane_target::{AuthConfig, HostKeys, KeyPair, RequiredAuth};
use isolane_wire::Nqn;
use isolane_wire::auth::{DhGroup, Hash};

use crate::failure::Failure;

/// Keys of hosts, and the proofs that subsystems require. Its `Debug` shows no key.
#[derive(Debug)]
struct ConfiguredKeys {
    keys: HashMap<Nqn, Vec<KeyPair>>,
    subsystems: HashMap<Nqn, RequiredProofs>,
    discovery: Require,
}

/// Proofs that a subsystem requires.
#[derive(Debug)]
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

impl HostKeys for ConfiguredKeys {
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

/// Reads all keys of the file; `None` if no host must give a proof.
pub fn load(config: &Config) -> Result<Option<AuthConfig>, Failure> {
    let read = |host: &Host| Ok((host.nqn.0, read_keys(host)?));
    let proofs = |one: &Subsystem| (one.nqn.0, RequiredProofs::new(config, one));
    let keys = ConfiguredKeys {
        keys: config.hosts.values().map(read).collect::<Result<_, Failure>>()?,
        subsystems: config.subsystems.values().map(proofs).collect(),
        discovery: config.server.discovery_require.unwrap_or(Require::None),
    };
    let is_open = |proofs: &RequiredProofs| {
        proofs.hosts.values().all(|required| *required == Require::None) && proofs.of_others == Require::None
    };
    if keys.discovery == Require::None && keys.subsystems.values().all(is_open) {
        return Ok(None);
    }
    let mut auth = AuthConfig::new(Arc::new(keys));
    if let Some(hashes) = &config.server.auth_hashes {
        auth.policy.hashes = hashes.0.iter().map(|hash| hash_of(*hash)).collect();
    }
    if let Some(groups) = &config.server.auth_groups {
        auth.policy.groups = groups.0.iter().map(|group| group_of(*group)).collect();
    }
    Ok(Some(auth))
}

/// The target's key at the place of each key, or the last one.
fn read_keys(host: &Host) -> Result<Vec<KeyPair>, Failure> {
    let read_all = |keys: &Option<AuthKeys>, name| -> Result<Vec<Key>, Failure> {
        let sources = keys.iter().flat_map(|keys| &keys.0);
        let failed = |error| Failure::new(format!("cannot use {name} of host {}", host.name), error);
        sources.map(|source| read(source).map_err(failed)).collect()
    };
    let keys = read_all(&host.auth_key, "auth-key")?;
    let target_keys = read_all(&host.auth_target_key, "auth-target-key")?;
    let target_key = |at: usize| target_keys.get(at).or(target_keys.last()).cloned();
    Ok(keys.into_iter().enumerate().map(|(at, host)| KeyPair { host, controller: target_key(at) }).collect())
}

fn read(source: &KeySource) -> Result<Key, isolane_auth::KeyFileError> {
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
