//! Reading a configuration file at the start of a target.

use std::net::SocketAddr;
use std::path::{Path, absolute};

use clap::{Args as _, FromArgMatches};
use isolane_target::{AuthConfig, TargetLimits, TargetPort};

use super::exposure::warn_of_gaps;
use super::from_file::{check, plan, ports, referrals};
use super::handover::ConfigTexts;
use super::live_config::{Current, LiveConfig};
use super::subsystem::Planned;
use super::{Args, auth, limits};
use crate::config_file;
use crate::failure::{Context, Failure};

/// What a file describes.
pub struct Loaded {
    /// Options of the target.
    pub options: Args,
    /// Its ports, and the addresses of other discovery services.
    pub ports: (Vec<TargetPort>, Vec<SocketAddr>),
    /// Its subsystems.
    pub subsystems: Vec<Planned>,
    /// Keys of hosts.
    pub auth: AuthConfig,
    /// Limits of connections.
    pub limits: TargetLimits,
    /// The file.
    pub file: LiveConfig,
}

/// Reads a file, unless the program before has passed it on. `strict` rejects access without authentication from other
/// machines; otherwise the log has it. Every failure has the exit status of a wrong file, unless a path is missing that may
/// appear.
pub fn load(path: &Path, strict: bool, before: Option<ConfigTexts>) -> Result<Loaded, Failure> {
    read(path, strict, before).map_err(Failure::of_usage)
}

fn read(path: &Path, strict: bool, before: Option<ConfigTexts>) -> Result<Loaded, Failure> {
    let path = &absolute(path).context("cannot find the working directory")?;
    let current = match before {
        Some(texts) => Current::from_texts(path, texts)?,
        None => {
            let text = config_file::read_text(path);
            let is_missing = path.try_exists().is_ok_and(|exists| !exists);
            let text = text.map_err(|failure| if is_missing { failure.may_end() } else { failure })?;
            let config = config_file::parse(path, &text)?;
            Current::new(text, config)
        }
    };
    let config = current.served(&config_file::kinds())?;
    let arguments = check(path, &config, strict)?;
    warn_of_gaps(&config);
    let command = Args::augment_args(clap::Command::new("serve"));
    let parsed = command.try_get_matches_from(arguments).and_then(|matches| Args::from_arg_matches(&matches));
    let mut options = parsed.map_err(Failure::from_error)?;
    options.skip_missing = config.server.skip_missing == Some(true);
    let (keys, auth) = auth::load(&config)?;
    Ok(Loaded {
        options,
        ports: (ports(&config), referrals(&config)),
        subsystems: config.subsystems.values().map(|one| plan(&config, one)).collect(),
        auth,
        limits: limits::plan(&config),
        file: LiveConfig::new(path, strict, current, keys),
    })
}
