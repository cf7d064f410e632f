//! The programs under measurement, run as a user would run them.

use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use super::row::Row;
use super::sample::Sample;
use crate::core::pin;

/// Where the programs are and where they run.
#[derive(Clone, Debug, clap::Args)]
pub struct Programs {
    /// The `isolane` program; by default the one beside this program
    #[arg(long, default_value_os_t = beside("isolane"))]
    pub isolane: PathBuf,
    /// The `floor` program; by default the one beside this program
    #[arg(long, default_value_os_t = beside("floor"))]
    pub floor: PathBuf,
    /// Core of the target
    #[arg(long, default_value_t = 0)]
    pub target_core: usize,
    /// Core of the host
    #[arg(long, default_value_t = 1)]
    pub host_core: usize,
    /// How Isolane's reactors wait on both sides: poll, adaptive or sleep
    #[arg(long, default_value = "poll")]
    pub mode: String,
    /// Further arguments of `isolane serve`, separated by spaces
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub serve_arguments: String,
    /// Further arguments of `isolane bench`, separated by spaces
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub bench_arguments: String,
}

/// The volume of the target, as large as the floor's working set.
const VOLUME: &str = "mem:256M";
/// Its name is known beforehand, so that no discovery is needed.
const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:be7c4000-0000-4000-8000-000000000001";

impl Programs {
    /// One run of the floor.
    pub fn sample_floor(&self, row: &Row, seconds: f64) -> io::Result<Sample> {
        let mut command = Command::new(&self.floor);
        command.arg("--json").arg("--seconds").arg(seconds.to_string());
        command
            .arg("--work")
            .arg(clap::ValueEnum::to_possible_value(&row.work).expect("no hidden work").get_name());
        command
            .arg("--depth")
            .arg(row.depth.to_string())
            .arg("--connections")
            .arg(row.connections.to_string());
        command.arg("--target-core").arg(self.target_core.to_string());
        command.arg("--host-core").arg(self.host_core.to_string());
        Sample::parse(&output(command)?)
    }

    /// One run of Isolane: a fresh target whose volume is written once, then the measurement.
    pub fn sample_isolane(&self, row: &Row, seconds: f64) -> io::Result<Sample> {
        let target = self.serve()?;
        let uri = format!("nvme+tcp://{}/{NQN}", target.address);
        // A page that was never written would be read from the one zero page.
        let fill = ["--rw", "write", "--bs", "1m", "--depth", "8", "--time", "1s"].map(str::to_owned);
        self.bench(&uri, &fill)?;
        let mut arguments = row.bench_arguments().to_vec();
        arguments.extend([
            "--time".to_owned(),
            format!("{seconds}s"),
            "--mode".to_owned(),
            self.mode.clone(),
        ]);
        arguments.extend(self.bench_arguments.split_whitespace().map(str::to_owned));
        Sample::parse(&self.bench(&uri, &arguments)?)
    }

    fn serve(&self) -> io::Result<Target> {
        let mut command = Command::new(&self.isolane);
        command.args(["serve", VOLUME, "--listen", "127.0.0.1:0", "--nqn", NQN, "--log-level", "warn"]);
        command.arg("--mode").arg(&self.mode).arg("--cores").arg(self.target_core.to_string());
        command.args(self.serve_arguments.split_whitespace());
        Target::start(command)
    }

    /// Runs `isolane bench` on the host's core and returns its JSON report.
    fn bench(&self, uri: &str, arguments: &[String]) -> io::Result<Vec<u8>> {
        let report = std::env::temp_dir().join(format!("isolane-paired-{}.json", std::process::id()));
        let mut command = Command::new(&self.isolane);
        command.arg("bench").arg(uri).args(arguments).arg("--json").arg(&report);
        on_core(self.host_core, || output(command))?;
        let text = std::fs::read(&report);
        std::fs::remove_file(&report)?;
        text
    }
}

fn beside(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.parent().map(|folder| folder.join(name)).unwrap_or_else(|| name.into())
}

/// Runs `work` pinned, with everything that it starts, and unpins the thread afterwards.
fn on_core<T>(core: usize, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = sched_getaffinity(None)?;
    pin(core)?;
    let result = work();
    sched_setaffinity(None, &before)?;
    result
}

fn output(mut command: Command) -> io::Result<Vec<u8>> {
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::piped()).output().map_err(|e| naming(&command, e))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?} failed with {}: {said}", output.status)))
}

fn naming(command: &Command, error: io::Error) -> io::Error {
    let program = command.get_program().display();
    io::Error::new(
        error.kind(),
        format!("cannot start {program}: {error}; build it with cargo build --release"),
    )
}

/// A running target that ends with this value.
struct Target {
    child: Child,
    address: String,
}

impl Target {
    fn start(mut command: Command) -> io::Result<Target> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut target = Target { child: child.map_err(|e| naming(&command, e))?, address: String::new() };
        let stdout = target.child.stdout.as_mut().expect("stdout is piped");
        for line in BufReader::new(stdout).lines() {
            if let Some(address) = line?.strip_prefix("listening on ") {
                target.address = address.to_owned();
                return Ok(target);
            }
        }
        Err(io::Error::other(format!("{command:?} ended without listening")))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
