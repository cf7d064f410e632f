//! `isolane ctl`: changes of a running `isolane serve`, over its control socket.
//!
//! The target checks each change. Invariant: an error changes nothing.

mod connections;
mod events;
mod log_level;
mod namespace;
mod object;
mod server;
mod status;
mod upgrade;

use std::path::{Path, PathBuf};

use clap_complete::engine::ArgValueCompleter;
use isolane_inspect::source::{ControlSocket, control_sockets, execute, read_lines};
use serde_json::Value;

use crate::completions::names;
use crate::failure::Failure;

/// Show and change a running target
///
/// Objects come and go while hosts are connected: hosts get a notice, and their other volumes are not affected. A target
/// with a configuration file (`isolane serve --config`) writes each change into its file, and keeps comments and order.
/// Other targets keep it until they end.
#[derive(Debug, clap::Args)]
#[command(disable_help_subcommand = true)]
pub struct Args {
    /// Control socket of the target (default: that of the only `isolane serve` that is found)
    #[arg(long, global = true, value_name = "PATH", add = ArgValueCompleter::new(names::sockets))]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    action: Action,
}

/// Action on a target.
#[derive(Debug, clap::Subcommand)]
enum Action {
    Status(status::Args),
    Server(server::Args),
    Namespace(namespace::Args),
    #[command(about = "Add, remove, and change subsystems in the configuration file and the target", long_about = None)]
    Subsystem(object::Args),
    #[command(about = "Add, remove, and change hosts in the configuration file and the target", long_about = None)]
    Host(object::Args),
    #[command(about = "Add, remove, and change ports in the configuration file and the target", long_about = None)]
    Port(object::Args),
    #[command(about = "Add, remove, and change referrals in the configuration file and the target", long_about = None)]
    Referral(object::Args),
    Connections(connections::Args),
    Disconnect(connections::DisconnectArgs),
    Events(events::Args),
    LogLevel(log_level::Args),
    Upgrade(upgrade::Args),
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let target = Running::find(args.socket.as_deref())?;
    match &args.action {
        Action::Status(args) => status::run(args, &target),
        Action::Server(args) => server::run(args, &target),
        Action::Namespace(args) => namespace::run(args, &target),
        Action::Subsystem(args) => object::run("subsystem", args, &target),
        Action::Host(args) => object::run("host", args, &target),
        Action::Port(args) => object::run("port", args, &target),
        Action::Referral(args) => object::run("referral", args, &target),
        Action::Connections(args) => connections::run(args, &target),
        Action::Disconnect(args) => connections::disconnect(args, &target),
        Action::Events(args) => events::run(args, &target),
        Action::LogLevel(args) => log_level::run(args, &target),
        Action::Upgrade(args) => upgrade::run(args, &target),
    }
}

/// A running target.
pub struct Running {
    socket: PathBuf,
}

impl Running {
    pub fn find(socket: Option<&Path>) -> Result<Running, Failure> {
        if let Some(socket) = socket {
            return Ok(Running { socket: socket.to_owned() });
        }
        let mut found = control_sockets();
        found.retain(|socket| socket.kind == "serve");
        match &found[..] {
            [] => {
                Err(Failure::new("no running target found", "no `isolane serve` has a control socket here")
                    .with_hint("name its socket with --socket, or run as its user"))
            }
            [ControlSocket { path, .. }] => Ok(Running { socket: path.clone() }),
            several => {
                let lines: Vec<String> = several
                    .iter()
                    .map(|socket| format!("\n  {}  process {}", socket.path.display(), socket.pid))
                    .collect();
                let what = format!("{} targets are running", several.len());
                Err(Failure::new(what, format!("name the socket of one with --socket:{}", lines.concat())))
            }
        }
    }

    /// Returns a subsystem: the named one, or the only one.
    fn subsystem(&self, named: Option<&str>) -> Result<String, Failure> {
        if let Some(named) = named {
            return Ok(named.to_owned());
        }
        let status = self.execute("GET", "/v1/namespaces", &Value::Null)?;
        let names = status["subsystems"].as_array().cloned().unwrap_or_default();
        match &names[..] {
            [Value::String(only)] => Ok(only.clone()),
            _ => {
                let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
                let reason = format!("there are several; name one with --subsystem: {}", names.join(", "));
                Err(Failure::new("cannot choose a subsystem", reason))
            }
        }
    }

    /// Passes the lines of a response to a function, until it returns `false`.
    fn lines(&self, path: &str, mut next: impl FnMut(&str) -> bool) -> Result<(), String> {
        let lines = read_lines(&self.socket, path)?;
        lines.lines().take_while(|line| next(line)).for_each(drop);
        Ok(())
    }

    /// Executes a request, and returns the response.
    pub fn execute(&self, method: &str, path: &str, body: &Value) -> Result<Value, Failure> {
        execute(&self.socket, method, path, body)
            .map_err(|reason| Failure::new(self.socket.display(), reason))
    }
}
