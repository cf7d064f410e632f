//! Sends lines from standard input to a TCP server through an isolated engine, and prints the replies.
//!
//! ```console
//! $ cargo run -p isolane-attach --example send_lines -- 127.0.0.1:7
//! ```
//!
//! An engine is started if none runs: the program `isolane` next to the example, in the PATH, or in ISOLANE_BIN.

use std::error::Error;
use std::io::{Read, Write};

use isolane_attach::stream::Stream;
use isolane_attach::{Session, default_path};

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: send_lines HOST:PORT")?;
    let session = Session::connect(&default_path())?;
    let mut stream = Stream::connect(&session, address.as_str())?;
    for line in std::io::stdin().lines() {
        stream.write_all(format!("{}\n", line?).as_bytes())?;
        let mut reply = [0; 4096];
        let count = stream.read(&mut reply)?;
        print!("{}", String::from_utf8_lossy(&reply[..count]));
    }
    // A plain TcpStream again, which needs no engine.
    let socket = stream.into_std()?;
    println!("{} is a plain socket again", socket.local_addr()?);
    Ok(())
}
