//! `isolane export`: a volume for clients of other protocols than NVMe/TCP.
//!
//! Opens the volume, starts the server, prints URIs and commands, and waits for signals. The server has its own thread;
//! this one sleeps.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use isolane_host::{IoChoice, Mode};
use isolane_nbd::{Address, Server, ServerConfig};
use isolane_rbd::Rbd;
use isolane_reactor::ReactorConfig;
use isolane_reactor::cpu::raise_fd_limit;
use isolane_volume::Volume;
use isolane_volume::shell::quoted;
use isolane_volume::spec::VolumeSpec;
use isolane_volumes::{JournalFile, remote_address};
use signal_hook::consts::SIGUSR1;

use crate::choice::one_of;
use crate::failure::{Context, Failure};
use crate::host_args::{IO_CHOICES, MODES};
use crate::memory;
use crate::output;
use crate::serve::conditions::{Conditions, reject_failures};
use crate::signals;
use crate::volume;

/// Export a volume over NBD, or to virtual machines over vhost-user
///
/// VOLUME is any volume of `isolane serve`: a file or block device, memory (mem:1G), a
/// stripe, a mirror, a filter, or a volume of another target. `isolane help serve` has the
/// forms. A volume with the option ro is read-only.
///
/// NBD clients are qemu, nbdcopy, nbdkit, fio, and nbd-client of Linux, among others. The
/// server speaks the fixed newstyle handshake, with structured replies and block status.
/// Several connections can be used together: a flush covers the completed writes of all.
/// NBD requests must be aligned to the block size of the volume, and have at most 32 MiB of
/// data.
///
/// Over vhost-user, a virtual machine has the volume as a virtio block device, and shares its
/// memory with this program, so that a request needs no system call of the machine. The
/// memory must be a sealed memfd without huge pages, as QEMU's memory-backend-memfd. With
/// `reconnect=1` (since QEMU 9.2 also `reconnect-ms=1000`), QEMU reconnects after a restart of
/// this program, which then repeats exactly the requests that were unfinished.
///
/// Before a volume of another target can be written, a successor of a killed export waits until
/// the target has ended the writes of that one, so that none of them follows a newer one. The
/// export keeps what it needs for this in the file SOCKET.journal, next to its first socket, and
/// removes the file at its end. With TCP addresses only, there is no such file.
///
/// A socket has mode 0600, so that only this user and root can connect. One that a killed
/// program has left is replaced. There is neither authentication nor encryption: anyone who
/// can reach a TCP address can read and write the volume.
///
/// The program prints one URI or path per address once it accepts connections, then the
/// volume, and commands for clients.
///
/// SIGINT, SIGTERM, and SIGHUP end it cleanly: it completes the requests in flight (for up to
/// 5 s), makes all data durable, and removes its sockets. If the volume hangs for 12 s more,
/// the error names it, and the exit status is 1. A second signal ends the program immediately.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Volume to export
    #[arg(value_name = "VOLUME", value_hint = clap::ValueHint::AnyPath)]
    volume: String,
    /// Listen here with NBD: the path of a socket, as ./disk.sock, or an address, as 127.0.0.1:10809; a port alone means
    /// 127.0.0.1, and port 0 selects a free port (default port: 10809); repeatable
    #[arg(
        long,
        required_unless_present = "vhost_user_blk",
        value_name = "SOCKET|ADDR:PORT",
        value_parser = parse_addresses
    )]
    nbd: Vec<Addresses>,
    /// Listen on this socket for virtual machines, which have the volume as a virtio block device
    #[arg(long, value_name = "SOCKET", value_parser = parse_socket)]
    vhost_user_blk: Option<PathBuf>,
    /// Name of the NBD export; clients can also use the empty name
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true, value_parser = parse_name)]
    name: String,
    /// Idle behavior of the servers
    #[arg(long, value_parser = one_of(&MODES), default_value = "adaptive")]
    mode: Mode,
    /// Kernel interface for files, readiness, and sleep
    #[arg(long, value_parser = one_of(&IO_CHOICES), default_value = "auto")]
    io: IoChoice,
}

/// The addresses of one argument.
#[derive(Clone, Debug)]
struct Addresses(Vec<Address>);

fn parse_addresses(text: &str) -> Result<Addresses, String> {
    Address::parse_all(text).map(Addresses)
}

fn parse_socket(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("the path is empty; use the path of a socket, as ./vm.sock".to_owned());
    }
    Ok(PathBuf::from(text))
}

/// Parses the name of an export, which is a string of the protocol.
fn parse_name(text: &str) -> Result<String, String> {
    if text.len() > MAX_NAME_BYTES {
        return Err(format!("the name has {} bytes; use at most {MAX_NAME_BYTES}", text.len()));
    }
    Ok(text.to_owned())
}

/// Maximum length of a name that every client accepts.
const MAX_NAME_BYTES: usize = 256;

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (mut signals, is_starting) = (signals::listen()?, Arc::new(AtomicBool::new(true)));
    signals::exit_while(&is_starting)?;
    // A queue of a machine has three descriptors, more than the usual limit allows for several machines.
    if let Err(error) = raise_fd_limit() {
        log::warn!("cannot raise the limit of open files: {error}");
    }
    let rbd = Arc::new(Rbd::new(volume::RBD_IMAGES_PER_CONNECTION.into()));
    let mut kinds = volume::kinds(&rbd);
    let spec = volume::parse(&kinds, &args.volume, "export", Some("--nbd 127.0.0.1:10809"))?;
    if spec.nsid.is_some() {
        return Err(Failure::new(format!("cannot export {}", args.volume), "an export has no namespace ID")
            .with_hint("remove nsid"));
    }
    reject_repeated_addresses(args)?;
    memory::check(&kinds, std::slice::from_ref(&spec), 0)?;
    let journal = open_journal(args, &kinds.leaves(&spec).map_err(Failure::from_error)?)?;
    journal.iter().for_each(|journal| kinds.set_journal(Arc::clone(journal)));
    let volume = kinds.open(&spec).map_err(Failure::from_error)?;
    is_starting.store(false, Ordering::Relaxed);
    let conditions = Conditions::default();
    conditions.add(&volume);
    let description = volume::describe(&spec, &*volume);
    let servers = Servers::start(args, &volume).context("cannot start the export")?;
    drop(volume);
    for address in servers.nbd.iter().flat_map(Server::exposed) {
        log::warn!("{address} is reachable from other machines, without authentication or encryption");
    }
    output::announce(banner(&servers, &description));
    signals.forever().find(|signal| *signal != SIGUSR1);
    signals::exit_on_next_signal()?;
    log::info!("completing requests in flight; a second signal ends the export immediately");
    let failures = conditions.log_failures();
    let stopped = servers.shutdown();
    drop(conditions);
    rbd.wait_for_closed(volume::RBD_CLOSE_TIMEOUT);
    journal.iter().for_each(|journal| journal.wait_for_end(REMOTE_CLOSE_TIMEOUT));
    stopped.map_err(|error| {
        Failure::new("the shutdown was not clean", error)
            .with_hint("completed writes may be lost; check the data before you use it again")
    })?;
    reject_failures(failures)
}

/// Opens the journal of remote volumes, next to the first socket. `None` without remote volumes, or without a socket.
fn open_journal(args: &Args, leaves: &[VolumeSpec]) -> Result<Option<Arc<JournalFile>>, Failure> {
    let nbd = args.nbd.iter().flat_map(|addresses| &addresses.0).find_map(|address| match address {
        Address::Unix(path) => Some(path),
        Address::Tcp(_) => None,
    });
    let Some(socket) = args.vhost_user_blk.as_ref().or(nbd) else { return Ok(None) };
    if leaves.iter().all(|leaf| remote_address(leaf).is_none()) {
        return Ok(None);
    }
    let mut path = socket.clone().into_os_string();
    path.push(".journal");
    JournalFile::open(Path::new(&path)).map(Some).map_err(Failure::from_error)
}

/// Rejects an address that is given twice, which the export would find in use.
fn reject_repeated_addresses(args: &Args) -> Result<(), Failure> {
    let mut seen: Vec<Address> = args.vhost_user_blk.clone().map(Address::Unix).into_iter().collect();
    for address in args.nbd.iter().flat_map(|addresses| &addresses.0) {
        let is_any_port = matches!(address, Address::Tcp(address) if address.port() == 0);
        if !is_any_port && seen.contains(address) {
            return Err(Failure::new(
                format!("cannot export {}", args.volume),
                format!("{address} is given twice"),
            )
            .with_hint("remove one of both"));
        }
        seen.push(address.clone());
    }
    Ok(())
}

/// Time for targets to end associations at the end.
const REMOTE_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The servers of one volume, each with its own thread.
struct Servers {
    nbd: Option<Server>,
    vhost: Option<isolane_vhost::Server>,
}

impl Servers {
    fn start(args: &Args, volume: &Arc<dyn Volume>) -> Result<Servers, Box<dyn Error + Send + Sync>> {
        let reactor = ReactorConfig { mode: args.mode, io: args.io, ..ReactorConfig::default() };
        let mut servers = Servers { nbd: None, vhost: None };
        if !args.nbd.is_empty() {
            servers.nbd = Some(Server::start(ServerConfig {
                volume: Arc::clone(volume),
                name: args.name.clone(),
                listen: args.nbd.iter().flat_map(|addresses| addresses.0.clone()).collect(),
                reactor: reactor.clone(),
            })?);
        }
        if let Some(socket) = args.vhost_user_blk.clone() {
            let volume = Arc::clone(volume);
            servers.vhost =
                Some(isolane_vhost::Server::start(isolane_vhost::ServerConfig { volume, socket, reactor })?);
        }
        Ok(servers)
    }

    /// Ends both together, and returns the first error.
    fn shutdown(self) -> Result<(), String> {
        self.vhost.iter().for_each(isolane_vhost::Server::stop);
        self.nbd.iter().for_each(Server::stop);
        let vhost = self.vhost.map_or(Ok(()), |server| server.shutdown().map_err(|error| error.to_string()));
        let nbd = self.nbd.map_or(Ok(()), |server| server.shutdown().map_err(|error| error.to_string()));
        vhost.and(nbd)
    }
}

/// Returns one line per address, the volume, and commands for clients.
fn banner(servers: &Servers, description: &str) -> String {
    let uris: Vec<String> = servers.nbd.iter().flat_map(Server::addresses).map(ToString::to_string).collect();
    let socket = servers.vhost.as_ref().map(|server| server.socket().display().to_string());
    let mut text: String = uris.iter().map(|uri| format!("exporting on {uri}\n")).collect();
    text += &socket.iter().map(|path| format!("exporting on vhost-user-blk {path}\n")).collect::<String>();
    text += &format!("volume: {description}\n");
    if let Some(uri) = uris.first() {
        let uri = quoted(uri);
        text += &format!(
            "\nfrom this machine:\n  nbdinfo {uri}\n  qemu-img info {uri}\n  nbdcopy {uri} ./copy.img\n"
        );
    }
    if let Some(path) = socket {
        // Commas separate the options of QEMU.
        let chardev = quoted(&format!("socket,id=disk0,path={},reconnect=1", path.replace(',', ",,")));
        text += &format!(
            "\nwith QEMU:\n  -m 1G -object memory-backend-memfd,id=mem0,size=1G,share=on -machine memory-backend=mem0 \\\n  \
             -chardev {chardev} \\\n  -device vhost-user-blk-pci,chardev=disk0\n"
        );
    }
    text
}
