//! Starting what serves.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::entrant::Target;
use super::lab::{Lab, START_LIMIT, VOLUME_BYTES, free_port};
use super::program::Running;
use super::{iscsi, isolane, spdk};

/// A target that listens, and ends with this value.
pub struct Serving {
    /// Its program; none where the host needs none.
    pub program: Option<Running>,
    /// Port on the loopback address.
    pub port: u16,
}

/// The NQN of every NVMe target here, known beforehand, so that no discovery is needed.
pub const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:be7c4000-0000-4000-8000-000000000001";

/// Starts a target for so many I/O connections and waits until it listens.
pub fn start(lab: &Lab, target: Target, connections: u16) -> io::Result<Serving> {
    match target {
        Target::None => Ok(Serving { program: None, port: 0 }),
        Target::Isolane(arguments) => isolane::serve_memory(lab, arguments),
        Target::IsolaneOnBoth(arguments) => isolane::serve_on_both(lab, arguments),
        Target::IsolaneFile { is_direct } => isolane::serve_file(lab, is_direct),
        Target::Spdk(sockets) => spdk::serve(lab, sockets, connections),
        Target::Nbdkit => nbdkit(lab),
        Target::QemuNbd => qemu(lab),
        Target::Tgt => iscsi::serve(lab),
    }
}

fn nbdkit(lab: &Lab) -> io::Result<Serving> {
    let port = free_port()?;
    let program = lab.target_program("nbdkit").args("--foreground --exit-with-parent --ipaddr 127.0.0.1");
    let program = program.args(&format!("--port {port} memory {VOLUME_BYTES}")).start()?;
    listening(program, port)
}

/// A file in memory stands behind the export: QEMU has no memory of its own to export that holds data.
fn qemu(lab: &Lab) -> io::Result<Serving> {
    let port = free_port()?;
    let file = memory_file()?;
    let program = lab.target_program("qemu-storage-daemon");
    let program = program.arg("--blockdev").arg(format!("driver=file,node-name=disk,filename={file}"));
    let program = program.arg("--nbd-server");
    let program = program.arg(format!("addr.type=inet,addr.host=127.0.0.1,addr.port={port}"));
    let program = program.arg("--export").arg("type=nbd,id=export,node-name=disk,name=disk,writable=on");
    listening(program.start()?, port)
}

/// A file of the volume's size on a file system in memory, without holes.
pub fn memory_file() -> io::Result<String> {
    let path = Path::new(MEMORY_FILE);
    if !fs::metadata(path).is_ok_and(|found| found.blocks() * 512 >= VOLUME_BYTES) {
        isolane::write_random(path)?;
    }
    Ok(path.to_string_lossy().into_owned())
}

/// Gives the memory of that file back.
pub fn forget_memory_file() {
    let _ = fs::remove_file(MEMORY_FILE);
}

const MEMORY_FILE: &str = "/dev/shm/isolane-bench.img";

/// Waits until `port` takes connections.
pub fn listening(mut program: Running, port: u16) -> io::Result<Serving> {
    let until = Instant::now() + START_LIMIT;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > until {
            return Err(io::Error::other(format!("nothing listens on port {port}")));
        }
        // Ends early if the program has.
        match program.wait_for(Duration::ZERO, |_| None::<()>) {
            Err(error) if error.to_string().contains(" ended with ") => return Err(error),
            _ => sleep(Duration::from_millis(50)),
        }
    }
    Ok(Serving { program: Some(program), port })
}
