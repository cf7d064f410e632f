use super::*;
use std::net::{TcpListener, TcpStream};

fn listener(address: &str) -> Option<TcpListener> {
    TcpListener::bind(address).ok()
}

/// A listener of each family that this machine has.
fn listeners() -> Vec<TcpListener> {
    ["127.0.0.1:0", "[::1]:0"].into_iter().filter_map(listener).collect()
}

fn options(text: &str) -> SocketOptions {
    text.parse().expect(text)
}

/// An algorithm that anybody may choose.
fn allowed_algorithm() -> String {
    let names = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").expect("Linux");
    names.split_whitespace().next().expect("at least one").to_owned()
}

#[test]
fn what_is_set_is_read_back_from_the_kernel_on_either_family() {
    let name = allowed_algorithm();
    let asked = options(&format!(
        "priority=5,tos=0x68,congestion={name},receive-buffer=64k,send-buffer=96k,unsent-max=128k"
    ));
    for listener in listeners() {
        let stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        asked.apply(&stream).expect("set");
        let told = SocketOptions::of(&stream).expect("told");
        assert_eq!(SocketOptions { busy_poll_us: None, prefer_busy_poll: None, ..told }, asked);
        asked.apply(&listener).expect("a listener takes them, too");
    }
}

#[test]
fn the_type_of_service_does_not_undo_the_priority() {
    for listener in listeners() {
        options("tos=0x10,priority=2").apply(&listener).expect("set");
        assert_eq!(SocketOptions::of(&listener).expect("told").priority, Some(2));
    }
}

#[test]
fn an_unknown_algorithm_is_refused_with_the_list_of_those_that_are_there() {
    for listener in listeners() {
        let error = options("congestion=nosuch").apply(&listener).expect_err("unknown");
        let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        assert!(error.to_string().contains(available.expect("Linux").trim()), "{error}");
        assert_eq!(error.option(), "congestion");
    }
}

#[test]
fn a_buffer_beyond_the_kernels_limit_is_an_error_and_not_less() {
    let limit: u64 = std::fs::read_to_string("/proc/sys/net/core/wmem_max")
        .expect("Linux")
        .trim()
        .parse()
        .expect("a number");
    let Some(beyond) = u32::try_from(limit + 1).ok().filter(|beyond| *beyond < 1 << 30) else { return };
    for listener in listeners() {
        let asked = SocketOptions { send_buffer_bytes: Some(beyond), ..SocketOptions::default() };
        let error = asked.apply(&listener).expect_err("too much").to_string();
        assert!(error.contains(&format!("grants {limit} bytes")) && error.contains("wmem_max"), "{error}");
    }
}

/// Busy polling needs a privilege: it is set, or the error names that.
#[test]
fn busy_polling_is_set_or_names_the_privilege() {
    for listener in listeners() {
        for text in ["busy-poll=77", "prefer-busy-poll=on"] {
            let asked = options(text);
            match asked.apply(&listener) {
                Ok(()) => {
                    let told = SocketOptions::of(&listener).expect("told");
                    let is_set = (told.busy_poll_us, told.prefer_busy_poll);
                    assert!(is_set.0 == asked.busy_poll_us || is_set.1 == asked.prefer_busy_poll, "{told}");
                }
                Err(error) => assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}"),
            }
        }
    }
}

#[test]
fn a_connection_within_the_machine_is_suited_as_far_as_nothing_was_chosen() {
    for listener in listeners() {
        let stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let begun_with_bbr = options("congestion=bbr").apply(&stream).is_ok();
        SocketOptions::default().suit_within_machine(&stream, 64 << 10);
        let told = SocketOptions::of(&stream).expect("told");
        assert_eq!(told.send_buffer_bytes, Some(64 << 10));
        assert!(!begun_with_bbr || told.congestion_control.as_deref() == Some("reno"));

        let name = allowed_algorithm();
        let chosen = options(&format!("congestion={name},send-buffer=96k"));
        chosen.apply(&stream).expect("set");
        chosen.suit_within_machine(&stream, 64 << 10);
        let told = SocketOptions::of(&stream).expect("told");
        assert_eq!((told.congestion_control, told.send_buffer_bytes), (Some(name), Some(96 << 10)));
    }
}
