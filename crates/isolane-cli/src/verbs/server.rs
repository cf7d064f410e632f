//! The server of a measurement: offers memory, and receives or answers SENDs.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use isolane_verbs::{Device, QueuePair, SendOperation};

use super::session::{self, CONTROL, MAX_REQUESTS, Offer, RECEIVE, Session, Setup};
use crate::control;
use crate::failure::{Context, Failure, IoContext};

/// Time that a client has for its first message.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of an operation in bytes.
pub(super) const MAX_BYTES: u64 = 64 << 20;

/// Serves clients, one after the other.
pub(super) fn run(device: &Device, address: SocketAddr) -> Result<(), Failure> {
    let what = || format!("cannot listen at {address}");
    let listener = device.listen(address).io_context(what())?;
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "listening on {}", listener.local_addr().io_context(what())?);
    let _ = stdout.flush();
    loop {
        let session = Session::new(device)?;
        let pair = listener.accept(&session.config).context(what())?;
        control::add(&pair);
        if let Err(failure) = serve(&session, &pair) {
            log::debug!("a client has gone: {failure}");
        }
    }
}

/// Serves one client until it is gone.
fn serve(session: &Session, pair: &QueuePair) -> Result<(), Failure> {
    session.expect_message(pair)?;
    // Other clients wait for this one.
    let deadline = Some(Instant::now() + FIRST_MESSAGE_TIMEOUT);
    while session.next_before(deadline)? != CONTROL {}
    let setup = Setup::decode(&session.message());
    if !(1..=MAX_BYTES).contains(&setup.bytes) {
        return Err(Failure::new(format!("a client asks for {} bytes", setup.bytes), "64M is the limit"));
    }
    let memory = session.register(setup.bytes.max(8))?;
    for _ in 0..MAX_REQUESTS {
        session::receive(pair, RECEIVE, &memory, setup.bytes)?;
    }
    session.send_message(pair, Offer { address: memory.address(), key: memory.key() }.encode())?;
    loop {
        if session.next()? == RECEIVE {
            session::receive(pair, RECEIVE, &memory, setup.bytes)?;
            if setup.echoes {
                session::post(pair, 0, SendOperation::Send { immediate: None }, &memory, setup.bytes)?;
            }
        }
    }
}
