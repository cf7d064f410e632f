//! Where the programs are, and where they run.

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::entrant::{Entrant, Host, Target};
use super::program::{Program, find};

/// Where the programs are, and where they run.
#[derive(Clone, Debug, clap::Args)]
pub struct Lab {
    /// The `isolane` program; by default the one beside this program
    #[arg(long, value_name = "FILE", default_value_os_t = beside("isolane"))]
    pub isolane: PathBuf,
    /// The `floor` program; by default the one beside this program
    #[arg(long, value_name = "FILE", default_value_os_t = beside("floor"))]
    pub floor: PathBuf,
    /// The `capsules` program; by default the one beside this program
    #[arg(long, value_name = "FILE", default_value_os_t = beside("capsules"))]
    pub capsules: PathBuf,
    /// A built tree of SPDK, with build/bin/nvmf_tgt and build/bin/spdk_nvme_perf; by default $SPDK_DIR
    #[arg(long, value_name = "DIR")]
    pub spdk: Option<PathBuf>,
    /// Core of the target
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub target_core: usize,
    /// Core of the host
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub host_core: usize,
    /// A folder on a disk, for the rows about files and for what the programs say
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    pub scratch: PathBuf,
    /// Further arguments of every `isolane serve`, separated by spaces
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub serve_arguments: String,
    /// Further arguments of every `isolane bench`, separated by spaces
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub bench_arguments: String,
}

/// Bytes of every memory and file that is served, as in the floor.
pub const VOLUME_BYTES: u64 = crate::floor::WORKING_SET_BYTES as u64;

/// How long a target may take to get ready, and a host to connect and to end.
pub const START_LIMIT: Duration = Duration::from_secs(30);

impl Lab {
    /// A program on the target's core.
    pub fn target_program(&self, path: impl AsRef<Path>) -> Program {
        Program::new(path.as_ref(), Some(self.target_core), &self.scratch)
    }

    /// A program on the host's core.
    pub fn host_program(&self, path: impl AsRef<Path>) -> Program {
        Program::new(path.as_ref(), Some(self.host_core), &self.scratch)
    }

    /// A program that pins itself, or whose place does not matter.
    pub fn free_program(&self, path: impl AsRef<Path>) -> Program {
        Program::new(path.as_ref(), None, &self.scratch)
    }

    /// One of SPDK's programs.
    pub fn spdk_program(&self, name: &str) -> PathBuf {
        let folder = self.spdk.clone().or_else(|| std::env::var_os("SPDK_DIR").map(PathBuf::from));
        let built = folder.map(|folder| folder.join("build/bin").join(name));
        built.or_else(|| find(name)).unwrap_or_else(|| name.into())
    }

    /// A file that is served, or that stands in for memory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// What is missing for an entrant, and how to get it.
    pub fn missing(&self, entrant: &Entrant) -> Option<String> {
        let mut needed = vec!["setpriv".to_owned(), "taskset".to_owned()];
        needed.extend(self.needed_by_target(entrant.target));
        needed.extend(self.needed_by_host(entrant.host));
        let missing = needed.into_iter().find(|name| find(name).is_none())?;
        Some(format!("{missing} is not there: {}", remedy(&missing)))
    }

    fn needed_by_target(&self, target: Target) -> Vec<String> {
        match target {
            Target::None => vec![],
            Target::Isolane(_) | Target::IsolaneOnBoth(_) | Target::IsolaneFile { .. } => {
                vec![name_of(&self.isolane)]
            }
            // Our host writes what it serves.
            Target::Spdk(_) => vec![name_of(&self.spdk_program("nvmf_tgt")), name_of(&self.isolane)],
            Target::Nbdkit => vec!["nbdkit".into()],
            Target::QemuNbd => vec!["qemu-storage-daemon".into()],
            Target::Tgt => vec!["tgtd".into(), "tgtadm".into()],
        }
    }

    fn needed_by_host(&self, host: Host) -> Vec<String> {
        match host {
            Host::Floor(_) => vec![name_of(&self.floor)],
            Host::Isolane(_) | Host::IsolaneOnBoth(_) | Host::Settled(_) => vec![name_of(&self.isolane)],
            Host::Spdk(..) => vec![name_of(&self.spdk_program("spdk_nvme_perf"))],
            Host::Capsules(_) | Host::Idle(_) => vec![name_of(&self.capsules)],
            Host::FioNbd | Host::FioFile { .. } => vec!["fio".into()],
            Host::IscsiPerf => vec!["iscsi-perf".into()],
        }
    }
}

fn remedy(program: &str) -> &'static str {
    match program.rsplit('/').next().unwrap_or(program) {
        "isolane" | "floor" | "capsules" => "cargo build --release -p isolane-cli -p isolane-bench",
        "nvmf_tgt" | "spdk_nvme_perf" => {
            "build SPDK (./configure --with-uring && make) and name its folder with --spdk or SPDK_DIR"
        }
        "tgtd" | "tgtadm" => "install the package tgt",
        "iscsi-perf" => "install the package libiscsi-bin",
        "qemu-storage-daemon" => "install the package qemu-utils or qemu-system-common",
        "setpriv" | "taskset" => "install the package util-linux",
        _ => "install the package of that name",
    }
}

fn name_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn beside(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.parent().map(|folder| folder.join(name)).unwrap_or_else(|| name.into())
}

/// A port that nobody listens on at the moment.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
