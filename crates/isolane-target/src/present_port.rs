//! The port of a connection whose listener is gone when it connects.

use std::net::SocketAddr;

use isolane_proto::subsystem::{ConnectionInfo, Port};

use crate::listen::{canonical, is_dual_stack};

/// Returns a connection with the listener that has its address now, if its own is gone.
pub(crate) fn at_present(port: &Port, from: ConnectionInfo) -> ConnectionInfo {
    if port.listeners().any(|(id, _)| id == from.listener) {
        return from;
    }
    let all: Vec<_> = port.listeners().map(|(id, listener)| (id, listener.address)).collect();
    ConnectionInfo { listener: find_listener(&all, canonical(from.local)).unwrap_or(from.listener), ..from }
}

/// Returns the listener that accepts connections to an address: one that has it, or one with all addresses of its kind.
fn find_listener<T: Copy>(all: &[(T, SocketAddr)], address: SocketAddr) -> Option<T> {
    let has_kind = |listener: SocketAddr| {
        listener.is_ipv4() == address.is_ipv4()
            || is_dual_stack(listener, all.iter().map(|(_, other)| *other))
    };
    let is_any = |listener: SocketAddr| listener.ip().is_unspecified() && listener.port() == address.port();
    let exact = all.iter().find(|(_, listener)| *listener == address);
    exact
        .or_else(|| all.iter().find(|(_, listener)| is_any(*listener) && has_kind(*listener)))
        .map(|(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_at_the_listener_of_their_address() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let find = |all: &[&str], address: &str| {
            let all: Vec<_> = all.iter().enumerate().map(|(place, text)| (place, at(text))).collect();
            find_listener(&all, at(address))
        };
        let both = ["[::]:1", "0.0.0.0:1", "10.0.0.1:1", "10.0.0.1:2"];
        assert_eq!(find(&both, "[fd00::1]:1"), Some(0));
        assert_eq!(find(&both, "10.0.0.2:1"), Some(1));
        assert_eq!(find(&both, "10.0.0.1:1"), Some(2));
        assert_eq!(find(&both, "10.0.0.2:2"), None);
        assert_eq!(find(&["[::]:1"], "10.0.0.2:1"), Some(0));
        assert_eq!(find(&["0.0.0.0:1"], "[fd00::1]:1"), None);
    }
}
