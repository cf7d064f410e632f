//! Listeners, which adopt the connections that they accept.

use std::ffi::{c_char, c_int};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, IntoRawFd};

use isolane_attach::Session;
use isolane_attach::stream::StreamOptions;
use isolane_shm::with_signals_blocked;
use rustix::net::sockopt;

use crate::entry::{call, close};
use crate::error::Failure;
use crate::ffi::{as_ref, borrowed, from_raw, into_raw, owned, text};
use crate::options::or_default;
use crate::stream::{Stream, addresses, into_raw_stream};

/// A listening socket with the options of its streams.
///
/// Does not use the listener of `isolane-attach`: signals are blocked during an adoption, but not during the wait
/// for a connection.
pub struct Listener {
    listener: TcpListener,
    session: Session,
    options: StreamOptions,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_listener_bind(
    session: *mut Session,
    address: *const c_char,
    options: *const StreamOptions,
) -> *mut Listener {
    call("isolane_listener_bind", || {
        // SAFETY: the header states the requirements.
        let (session, address, options) = unsafe { (as_ref(session)?, text(address)?, or_default(options)) };
        let listener = TcpListener::bind(&*addresses(address)?)?;
        Ok(into_raw(Listener { listener, session: session.clone(), options }))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_listener_from_fd(
    session: *mut Session,
    fd: c_int,
    options: *const StreamOptions,
) -> *mut Listener {
    call("isolane_listener_from_fd", || {
        // SAFETY: the header states the requirements.
        let (session, options, fd) = unsafe { (as_ref(session)?, or_default(options), borrowed(fd)?) };
        if !sockopt::socket_acceptconn(fd).map_err(std::io::Error::from)? {
            return Err(Failure::Argument("socket is not listening: call listen() first"));
        }
        // SAFETY: the descriptor is open, and the caller transfers it.
        let listener = unsafe { owned(fd) }.into();
        Ok(into_raw(Listener { listener, session: session.clone(), options }))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_listener_accept(listener: *mut Listener) -> *mut Stream {
    call("isolane_listener_accept", || {
        // SAFETY: the header states the requirements.
        let Listener { listener, session, options } = unsafe { as_ref(listener)? };
        session.check()?;
        let (socket, _) = listener.accept()?;
        Ok(into_raw_stream(with_signals_blocked(|| options.adopt_if_possible(session, socket))?, None))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_listener_fd(listener: *const Listener) -> c_int {
    // SAFETY: the header states the requirements.
    call("isolane_listener_fd", || Ok(unsafe { as_ref(listener)? }.listener.as_raw_fd()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_listener_into_fd(listener: *mut Listener) -> c_int {
    call("isolane_listener_into_fd", || {
        // SAFETY: the header states the requirements.
        let listener = unsafe { from_raw(listener) }.ok_or(NO_LISTENER)?;
        Ok(listener.listener.into_raw_fd())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_listener_close(listener: *mut Listener) {
    // SAFETY: the header states the requirements.
    unsafe { close("isolane_listener_close", listener) };
}

const NO_LISTENER: Failure = Failure::Argument("listener is NULL: check the result of isolane_listener_bind");

/// Several threads can use a listener or a session.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Listener>();
    is_shared::<Session>();
};
