use super::*;
use std::net::{TcpListener, TcpStream};

fn listener(address: &str) -> Option<TcpListener> {
    TcpListener::bind(address).ok()
}

/// Returns a listener of each available address family.
fn listeners() -> Vec<TcpListener> {
    ["127.0.0.1:0", "[::1]:0"].into_iter().filter_map(listener).collect()
}

fn options(text: &str) -> SocketOptions {
    text.parse().expect(text)
}

/// Returns an algorithm that needs no privilege.
fn allowed_algorithm() -> String {
    let names = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").expect("Linux");
    names.split_whitespace().next().expect("at least one").to_owned()
}

#[test]
fn round_trips_options_on_both_families() {
    let name = allowed_algorithm();
    let requested = options(&format!(
        "priority=5,tos=0x68,congestion={name},receive-buffer=64k,send-buffer=96k,max-unsent=128k"
    ));
    for listener in listeners() {
        let stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        requested.apply(&stream).expect("set");
        let actual = SocketOptions::from_socket(&stream).expect("actual");
        assert_eq!(SocketOptions { busy_poll_us: None, prefer_busy_poll: None, ..actual }, requested);
        requested.apply(&listener).expect("set on a listener");
    }
}

#[test]
fn tos_keeps_priority() {
    for listener in listeners() {
        options("tos=0x10,priority=2").apply(&listener).expect("set");
        assert_eq!(SocketOptions::from_socket(&listener).expect("actual").priority, Some(2));
    }
}

#[test]
fn unknown_algorithm_error_lists_available() {
    for listener in listeners() {
        let error = options("congestion=nosuch").apply(&listener).expect_err("unknown");
        let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        assert!(error.to_string().contains(available.expect("Linux").trim()), "{error}");
        assert_eq!(error.option(), "congestion");
    }
}

#[test]
fn rejects_buffer_beyond_kernel_limit() {
    let limit: u64 = std::fs::read_to_string("/proc/sys/net/core/wmem_max")
        .expect("Linux")
        .trim()
        .parse()
        .expect("a number");
    let Some(beyond) = u32::try_from(limit + 1).ok().filter(|beyond| *beyond < 1 << 30) else { return };
    for listener in listeners() {
        let requested = SocketOptions { send_buffer_bytes: Some(beyond), ..SocketOptions::default() };
        let error = requested.apply(&listener).expect_err("too much").to_string();
        assert!(error.contains(&format!("grants {limit} bytes")) && error.contains("wmem_max"), "{error}");
    }
}

#[test]
fn busy_poll_applies_or_names_privilege() {
    for listener in listeners() {
        for text in ["busy-poll=77", "prefer-busy-poll=on"] {
            let requested = options(text);
            match requested.apply(&listener) {
                Ok(()) => {
                    let actual = SocketOptions::from_socket(&listener).expect("actual");
                    let is_set = (actual.busy_poll_us, actual.prefer_busy_poll);
                    assert!(
                        is_set.0 == requested.busy_poll_us || is_set.1 == requested.prefer_busy_poll,
                        "{actual}"
                    );
                }
                Err(error) => assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}"),
            }
        }
    }
}

#[test]
fn tunes_only_unset_options_for_loopback() {
    for listener in listeners() {
        let stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let started_with_bbr = options("congestion=bbr").apply(&stream).is_ok();
        SocketOptions::default().tune_for_loopback(&stream, 64 << 10);
        let actual = SocketOptions::from_socket(&stream).expect("actual");
        assert_eq!(actual.send_buffer_bytes, Some(64 << 10));
        assert!(!started_with_bbr || actual.congestion_control.as_deref() == Some("reno"));

        let name = allowed_algorithm();
        let chosen = options(&format!("congestion={name},send-buffer=96k"));
        chosen.apply(&stream).expect("set");
        chosen.tune_for_loopback(&stream, 64 << 10);
        let actual = SocketOptions::from_socket(&stream).expect("actual");
        assert_eq!((actual.congestion_control, actual.send_buffer_bytes), (Some(name), Some(96 << 10)));
    }
}
