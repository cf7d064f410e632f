//! Connections that come in.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use super::{Stream, StreamOptions};
use crate::Session;

/// A listener whose connections go through an engine. It listens itself, as `std`'s does: only what it accepts
/// is adopted.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    session: Session,
    options: StreamOptions,
}

impl Listener {
    /// As `TcpListener::bind`.
    ///
    /// # Errors
    /// As that.
    pub fn bind(session: &Session, address: impl ToSocketAddrs) -> io::Result<Listener> {
        Ok(Listener::from_std(session, TcpListener::bind(address)?, StreamOptions::default()))
    }

    /// Of a listener that listens already.
    pub fn from_std(session: &Session, listener: TcpListener, options: StreamOptions) -> Listener {
        Listener { listener, session: session.clone(), options }
    }

    /// The next connection. Waits as the socket of the listener does.
    ///
    /// # Errors
    /// As `TcpListener::accept`, and [`Stream::adopt`].
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let (socket, address) = self.listener.accept()?;
        Ok((self.options.adopt(&self.session, socket)?, address))
    }

    /// As `TcpListener::local_addr`.
    ///
    /// # Errors
    /// The system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The listener itself.
    pub fn as_std(&self) -> &TcpListener {
        &self.listener
    }

    /// The listener itself, without the engine.
    pub fn into_std(self) -> TcpListener {
        self.listener
    }
}
