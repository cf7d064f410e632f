//! `isolane ctl upgrade`: another version of the program, without an end of connections.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Running;
use crate::failure::{Context, Failure};
use crate::output;

/// Replace the program of the target while hosts stay connected
///
/// The other program first runs in a rehearsal: it reads the configuration and the state of the target. Then the commands
/// in flight end, for 2 s at most, and the process becomes the other program, with the same process ID and the same
/// arguments. It serves what the target serves at present, with all changes. Hosts notice a short pause only. If anything
/// fails before, the target continues as it was, and the error says why. The data of memory volumes is copied for the
/// other program, which takes as much memory again for that time.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Program (default: the file from which the target was started, which a package may have replaced)
    program: Option<PathBuf>,
}

/// Runs the subcommand.
pub fn run(args: &Args, target: &Running) -> Result<(), Failure> {
    let before = count(target)?;
    let program = args.program.as_deref().map(std::path::absolute).transpose().context("cannot upgrade")?;
    let refused = target.execute("POST", PATH, &json!({ "program": program })).err();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match count(target) {
            Ok((count, version, pid)) if count > before.0 => {
                let text = format!("process {pid}: version {version}, upgrade {count}\n");
                return output::write_stdout(text.as_bytes());
            }
            // It has answered after the request, and is the program of before.
            Ok(_) => {
                let silent = || Failure::new(target.socket.display(), "the target has not been replaced");
                return Err(refused.unwrap_or_else(silent));
            }
            Err(gone) if Instant::now() >= deadline => return Err(gone),
            Err(_) => thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Returns the number of upgrades, the version, and the process ID.
fn count(target: &Running) -> Result<(u64, String, u64), Failure> {
    let reply = target.execute("GET", PATH, &Value::Null)?;
    let version = reply["version"].as_str().unwrap_or_default().to_owned();
    Ok((reply["upgrades"].as_u64().unwrap_or_default(), version, reply["pid"].as_u64().unwrap_or_default()))
}

const PATH: &str = "/v1/upgrade";
/// Time for the other program to open the volumes.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
