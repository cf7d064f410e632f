//! `adoptions`: what it takes to have an engine adopt connections, one after the other and side by side.

#![forbid(unsafe_code)]

use std::error::Error;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use isolane_attach::stream::{Stream, StreamOptions};
use isolane_attach::{Options, Session};

/// Measure how long the adoption of connections takes, per connection
#[derive(Parser)]
struct Arguments {
    /// Socket of a running engine
    #[arg(long)]
    socket: PathBuf,
    /// Connections of each round
    #[arg(long, default_value_t = 1000)]
    streams: usize,
    /// Rounds of each way, alternating
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

fn connections(count: usize) -> std::io::Result<(Vec<TcpStream>, Vec<TcpStream>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let pair = |_| Ok((TcpStream::connect(listener.local_addr()?)?, listener.accept()?.0));
    (0..count).map(pair).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { socket, streams, rounds } = Arguments::parse();
    let session = Session::open(&Options { path: socket, starts: false, ..Options::default() })?;
    // Kept, so that closing them is not measured as well.
    let mut kept = Vec::new();
    for _ in 0..rounds {
        for is_batch in [false, true] {
            let (sockets, peers) = connections(streams)?;
            let start = Instant::now();
            let adopted: Vec<_> = match is_batch {
                true => StreamOptions::default().adopt_all(&session, sockets),
                false => sockets.into_iter().map(|socket| Stream::adopt(&session, socket)).collect(),
            };
            let time = start.elapsed() / streams.max(1) as u32;
            kept.push((adopted.into_iter().collect::<Result<Vec<_>, _>>()?, peers));
            let way = if is_batch { "side by side" } else { "one by one" };
            println!("{way}: {:.1} µs for each of {streams}", time.as_secs_f64() * 1e6);
        }
    }
    Ok(())
}
