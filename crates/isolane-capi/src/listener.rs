//! Connections that come in.

use std::ffi::{c_char, c_int};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, IntoRawFd};

use isolane_attach::Session;
use isolane_attach::stream::StreamOptions;
use rustix::net::sockopt;

use crate::border::{borrowed, give, owned, shared, take, text, without_signals};
use crate::call::{call, close};
use crate::failure::Failure;
use crate::options::or_default;
use crate::stream::{Stream, addresses, hand_out};

/// A listener, and how what it accepts is adopted. Not `attach`'s own: signals are blocked while a stream is
/// adopted, and not while one is waited for.
pub struct Listener {
    listener: TcpListener,
    session: Session,
    options: StreamOptions,
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_listener_bind(
    session: *mut Session,
    address: *const c_char,
    options: *const StreamOptions,
) -> *mut Listener {
    call("isolane_listener_bind", || {
        // SAFETY: as the header says.
        let (session, address, options) = unsafe { (shared(session)?, text(address)?, or_default(options)) };
        let listener = TcpListener::bind(&*addresses(address)?)?;
        Ok(give(Listener { listener, session: session.clone(), options }))
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_listener_from_fd(
    session: *mut Session,
    fd: c_int,
    options: *const StreamOptions,
) -> *mut Listener {
    call("isolane_listener_from_fd", || {
        // SAFETY: as the header says.
        let (session, options, fd) = unsafe { (shared(session)?, or_default(options), borrowed(fd)?) };
        if !sockopt::socket_acceptconn(fd).map_err(std::io::Error::from)? {
            return Err(Failure::argument("the socket does not listen: call listen() before"));
        }
        // SAFETY: it is open, and from now on the listener's.
        let listener = unsafe { owned(fd) }.into();
        Ok(give(Listener { listener, session: session.clone(), options }))
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_listener_accept(listener: *mut Listener) -> *mut Stream {
    call("isolane_listener_accept", || {
        // SAFETY: as the header says.
        let Listener { listener, session, options } = unsafe { shared(listener)? };
        session.check()?;
        let (socket, _) = listener.accept()?;
        Ok(hand_out(without_signals(|| options.adopt_if_possible(session, socket))?, None))
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_listener_fd(listener: *const Listener) -> c_int {
    // SAFETY: as the header says.
    call("isolane_listener_fd", || Ok(unsafe { shared(listener)? }.listener.as_raw_fd()))
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_listener_into_fd(listener: *mut Listener) -> c_int {
    call("isolane_listener_into_fd", || {
        // SAFETY: as the header says.
        let listener = unsafe { take(listener) };
        let listener =
            listener.ok_or(Failure::Argument("the listener is NULL: see whether bind has failed"))?;
        Ok(listener.listener.into_raw_fd())
    })
}

/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn isolane_listener_close(listener: *mut Listener) {
    // SAFETY: as the header says.
    unsafe { close("isolane_listener_close", listener) };
}

/// Several threads may use one.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Listener>();
    is_shared::<Session>();
};
