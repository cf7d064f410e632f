//! A proxy in front of a target that holds back the data of reads until the test opens it.
//!
//! Connections without I/O queues pass, so that a host can connect and stay connected.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

pub struct Gate {
    /// Where hosts connect.
    pub uri: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_open: Mutex<bool>,
    opened: Condvar,
    connections: Mutex<Vec<TcpStream>>,
}

impl Gate {
    /// A closed gate in front of the target with this URI.
    pub fn start(target: &str) -> Gate {
        let address = target.strip_prefix("nvme+tcp://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = format!("nvme+tcp://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared::default());
        let gate = Gate { uri, shared: Arc::clone(&shared) };
        std::thread::spawn(move || {
            for host in listener.incoming() {
                shared.connect(host.unwrap(), TcpStream::connect(&address).unwrap());
            }
        });
        gate
    }

    /// Lets everything pass.
    pub fn open(&self) {
        *self.shared.is_open.lock().unwrap() = true;
        self.shared.opened.notify_all();
    }

    /// Breaks all connections.
    pub fn cut(&self) {
        for connection in &*self.shared.connections.lock().unwrap() {
            // It fails only if the connection is broken already.
            let _ = connection.shutdown(Shutdown::Both);
        }
        self.open();
    }
}

impl Shared {
    fn connect(self: &Arc<Shared>, host: TcpStream, target: TcpStream) {
        let copy = |stream: &TcpStream| stream.try_clone().unwrap();
        self.connections.lock().unwrap().extend([copy(&host), copy(&target)]);
        let (down, is_io) = ((copy(&target), copy(&host)), Arc::new(AtomicBool::new(false)));
        let (shared, is_held) = (Arc::clone(self), Arc::clone(&is_io));
        std::thread::spawn(move || shared.pass_down(down.0, down.1, &is_held));
        std::thread::spawn(move || pass_up(host, target, &is_io));
    }

    fn pass_down(&self, mut target: TcpStream, host: TcpStream, is_io: &AtomicBool) {
        while let Ok(pdu) = receive(&mut target) {
            if pdu[0] == C2H_DATA && is_io.load(Ordering::SeqCst) {
                let is_open = self.is_open.lock().unwrap();
                drop(self.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
            }
            if (&host).write_all(&pdu).is_err() {
                break;
            }
        }
        let _ = host.shutdown(Shutdown::Both);
    }
}

fn pass_up(mut host: TcpStream, mut target: TcpStream, is_io: &AtomicBool) {
    let mut pass = || -> io::Result<()> {
        // The initialization of the connection, and then Connect, which names the queue.
        let initialize = receive(&mut host)?;
        target.write_all(&initialize)?;
        let connect = receive(&mut host)?;
        is_io.store(connect[QID] != 0, Ordering::SeqCst);
        target.write_all(&connect)?;
        io::copy(&mut host, &mut target)?;
        Ok(())
    };
    let _ = pass();
    let _ = target.shutdown(Shutdown::Both);
}

/// The next PDU.
fn receive(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut pdu = vec![0; 8];
    from.read_exact(&mut pdu)?;
    let len = u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]) as usize;
    pdu.resize(len, 0);
    from.read_exact(&mut pdu[8..])?;
    Ok(pdu)
}

/// The type of a PDU with data for the host.
const C2H_DATA: u8 = 7;
/// Where the PDU of a Connect has the low byte of the queue's ID.
const QID: usize = 8 + 42;
