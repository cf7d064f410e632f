//! A proxy that delays, cuts, and stalls connections, or changes their bits.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;

/// Address of the proxy, which has the ports of the far end.
pub(super) const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));
/// Length of the hello of each end.
const HELLO_BYTES: u64 = 128;

/// Faults of the proxy's connections.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// Bytes after which a connection is cut or stalled, on average; 0 for never.
    pub(super) interval: AtomicU64,
    /// A bit is changed instead of a cut or a stall.
    pub(super) flips: AtomicBool,
    pub(super) cuts: AtomicU64,
    pub(super) changes: AtomicU64,
    pub(super) stalls: AtomicU64,
    pub(super) has_ended: AtomicBool,
}

/// Forwards connections from a port of the proxy to the same port of `target`.
pub(super) fn start(target: SocketAddr, faults: &Arc<Faults>, seed: u64) {
    let listener = TcpListener::bind((PROXY, target.port())).unwrap();
    let faults = Arc::clone(faults);
    thread::spawn(move || {
        for (number, near) in listener.incoming().map_while(Result::ok).enumerate() {
            let Ok(far) = TcpStream::connect(target) else { continue };
            for stream in [&near, &far] {
                stream.set_nodelay(true).unwrap();
            }
            let mut rng = Rng::with_seed(seed.wrapping_add(number as u64));
            let directions = [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)];
            for (from, to) in directions {
                let (faults, rng) = (Arc::clone(&faults), rng.fork());
                thread::spawn(move || forward(from, to, &faults, rng));
            }
        }
    });
}

/// Forwards one direction until a fault or its end.
fn forward(mut from: TcpStream, mut to: TcpStream, faults: &Faults, mut rng: Rng) {
    let mut buffer = vec![0; 64 * 1024];
    let interval = faults.interval.load(Ordering::Relaxed);
    let mut left = if interval > 0 { rng.u64(0..2 * interval) } else { u64::MAX };
    // A hello has no checksum.
    let flips = faults.flips.load(Ordering::Relaxed);
    left = if flips { left.max(HELLO_BYTES) } else { left };
    while let Ok(count) = from.read(&mut buffer) {
        if flips && count as u64 > left {
            buffer[left as usize] ^= 1 << rng.u8(0..8);
            faults.changes.fetch_add(1, Ordering::Relaxed);
            left = u64::MAX;
        }
        let passed = (count as u64).min(left) as usize;
        if count == 0 || to.write_all(&buffer[..passed]).is_err() {
            break;
        }
        left -= passed as u64;
        if left == 0 && rng.u8(0..4) == 0 && !faults.has_ended.load(Ordering::Relaxed) {
            // It stays open without data until the ends close it.
            faults.stalls.fetch_add(1, Ordering::Relaxed);
            while from.read(&mut buffer).is_ok_and(|count| count > 0) {}
            break;
        }
        if left == 0 {
            faults.cuts.fetch_add(1, Ordering::Relaxed);
            break;
        }
        if rng.u8(0..64) == 0 {
            thread::sleep(Duration::from_micros(rng.u64(0..500)));
        }
    }
    for stream in [&from, &to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}
