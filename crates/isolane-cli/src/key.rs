//! `isolane key`: keys of hosts and controllers, for in-band authentication.
//!
//! Invariant: no key is printed; lines for the other side name its file.

use std::path::{Path, PathBuf};

use isolane_auth::{Key, KeyFile, KeyTransform};
use isolane_wire::auth::Hash;

use crate::choice::{Choice, one_of};
use crate::failure::Failure;
use crate::output;

/// Generate and check keys by which hosts and targets prove who they are
///
/// A key is a line `DHHC-1:HH:BASE64:` in a file that only its owner can read. Both sides have
/// the same key. A second key, of the controller, lets the host check the target. A target reads
/// keys by `auth-key` and `auth-target-key` of its configuration file, and a host by `--key` and
/// `--ctrl-key`. docs/AUTH.md explains both.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

/// Action on a key.
#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Write a new random key to a new file
    ///
    /// Prints the lines that give the key to the other side, as `isolane key convert`. The file is readable by its
    /// owner only, and an existing file is never replaced.
    Gen {
        /// File to create
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Hash function that binds the key to the NQN of its side
        #[arg(long, default_value = "sha256", value_name = "HASH", value_parser = one_of(&TRANSFORMS))]
        hash: KeyTransform,
        /// Length in bytes
        #[arg(long, default_value = "32", value_name = "BYTES", value_parser = one_of(&LENGTHS))]
        length: Hash,
    },
    /// Check a key, and who can read its file
    Check {
        /// Files with one key each
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
    /// Print the lines that give a key to Linux or SPDK, as host or target
    ///
    /// The lines read the key from its file, so copy the file to that machine first.
    Convert {
        /// File with the key
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The key is the controller's, by which the target proves itself
        #[arg(long)]
        controller: bool,
        /// Name of the host
        #[arg(long, value_name = "NQN", default_value = "HOSTNQN")]
        host_nqn: String,
        /// Name of the subsystem
        #[arg(long, value_name = "NQN", default_value = "SUBNQN")]
        nqn: String,
    },
}

const TRANSFORMS: [Choice<KeyTransform>; 4] = [
    ("none", "The key is used as it is", KeyTransform::None),
    ("sha256", "SHA-256", KeyTransform::Hash(Hash::Sha256)),
    ("sha384", "SHA-384", KeyTransform::Hash(Hash::Sha384)),
    ("sha512", "SHA-512", KeyTransform::Hash(Hash::Sha512)),
];

const LENGTHS: [Choice<Hash>; 3] =
    [("32", "256 bits", Hash::Sha256), ("48", "384 bits", Hash::Sha384), ("64", "512 bits", Hash::Sha512)];

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.action {
        Action::Gen { file, hash, length } => {
            let key = Key::generate(*length, *hash).map_err(Failure::from_error)?;
            KeyFile::create(file, &key).map_err(Failure::from_error)?;
            let names = Names { host: "HOSTNQN", subsystem: "SUBNQN" };
            print(&format!("created {}\n\n{}", file.display(), lines(file, false, &names)))
        }
        Action::Check { files } => {
            for file in files {
                let key = KeyFile::read(file).map_err(Failure::from_error)?;
                print(&format!("{}: valid, {}\n", file.display(), describe(&key)))?;
            }
            Ok(())
        }
        Action::Convert { file, controller, host_nqn, nqn } => {
            KeyFile::read(file).map_err(Failure::from_error)?;
            print(&lines(file, *controller, &Names { host: host_nqn, subsystem: nqn }))
        }
    }
}

fn print(text: &str) -> Result<(), Failure> {
    output::write_stdout(text.as_bytes())
}

fn describe(key: &Key) -> String {
    format!("{} bytes, {}", key.len_bytes(), key.transform_hash())
}

/// Names in the printed lines.
struct Names<'a> {
    host: &'a str,
    subsystem: &'a str,
}

/// Returns a line for each program of the other side.
fn lines(file: &Path, is_controller: bool, names: &Names<'_>) -> String {
    let path = quote(&file.display().to_string());
    let (host, subsystem) = (quote(names.host), quote(names.subsystem));
    let (linux, kernel, spdk) = if is_controller {
        ("dhchap-ctrl-secret", "dhchap_ctrl_key", "dhchap-ctrlr-key")
    } else {
        ("dhchap-secret", "dhchap_key", "dhchap-key")
    };
    format!(
        "\
# target: Linux
cat {path} > /sys/kernel/config/nvmet/hosts/{host}/{kernel}
# target: SPDK
rpc.py keyring_file_add_key KEY {path}
rpc.py nvmf_subsystem_add_host {subsystem} {host} --{spdk} KEY
# host: Linux
nvme connect -t tcp -a ADDRESS -s 4420 -n {subsystem} -q {host} --{linux} \"$(cat {path})\"
# host: SPDK
rpc.py keyring_file_add_key KEY {path}
rpc.py bdev_nvme_attach_controller -b NAME -t tcp -f ipv4 -a ADDRESS -s 4420 -n {subsystem} -q {host} --{spdk} KEY
"
    )
}

/// Quotes a text for the shell, if that is necessary.
fn quote(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/.:_-".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_quote_names_for_the_shell() {
        assert_eq!(quote("/etc/isolane/db-1.key"), "/etc/isolane/db-1.key");
        assert_eq!(quote("my key"), "'my key'");
        assert_eq!(quote("it's;"), r"'it'\''s;'");
        assert_eq!(quote(""), "''");
    }
}
