//! One request to a control socket.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use isolane_engine_api::runtime_dir::is_trusted;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use serde_json::Value;

use super::too_long;
use crate::unix_socket;

/// Time for a response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a command, which can open a volume on another machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(130);
/// Limit in bytes of the response to a command.
const MAX_REPLY: usize = 8 << 20;
const MAX_HEADERS: usize = 32;
/// Limit in bytes of a line of a response without an end.
const MAX_LINE: u64 = 1 << 20;

/// Returns the body of the response.
pub fn get(path: &Path, target: &str, limit: usize) -> Result<Vec<u8>, String> {
    get_within(path, target, limit, TIMEOUT)
}

/// Returns the body of the response, for which it waits up to this time.
pub fn get_within(path: &Path, target: &str, limit: usize, time: Duration) -> Result<Vec<u8>, String> {
    let head = format!("GET {target} HTTP/1.0\r\nHost: isolane\r\n\r\n");
    match send(path, head.as_bytes(), limit, time)? {
        (200, body) => Ok(body),
        (404, _) => Err("the program has no such data; use the `isolane` of the same version".to_owned()),
        (code, _) => Err(format!("the program rejects the request with status {code}")),
    }
}

/// Executes a request with a body of JSON, and returns the body of the response. Waits up to two minutes.
///
/// # Errors
/// The text of the program if it rejects the request.
pub fn execute(path: &Path, method: &str, target: &str, body: &Value) -> Result<Value, String> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head =
        format!("{method} {target} HTTP/1.0\r\nHost: isolane\r\nContent-Length: {}\r\n\r\n", body.len());
    let (code, body) = send(path, (head + &body).as_bytes(), MAX_REPLY, COMMAND_TIMEOUT)?;
    let value: Option<Value> = serde_json::from_slice(&body).ok();
    let detail = |value: &Value| value.get("detail").and_then(Value::as_str).map(str::to_owned);
    match (code, value) {
        (200..=299, Some(value)) => Ok(value),
        (400.., Some(value)) if detail(&value).is_some() => Err(detail(&value).unwrap_or_default()),
        (404 | 405, _) => {
            Err("the program has no such command; use the `isolane` of the same version".to_owned())
        }
        (code, _) => Err(format!("the program rejects the request with status {code}")),
    }
}

/// Returns the body of a response that has lines.
///
/// # Errors
/// The program rejects the request, or does not answer.
pub fn read_lines(path: &Path, target: &str) -> Result<String, String> {
    String::from_utf8(get(path, target, MAX_REPLY)?).map_err(|error| error.to_string())
}

/// Passes the lines of a response without an end to a function, until it returns `false`.
///
/// # Errors
/// The text of the program if it rejects the request, or the end of the program.
pub fn follow(path: &Path, target: &str, mut next: impl FnMut(&str) -> bool) -> Result<(), String> {
    let head = format!("GET {target} HTTP/1.0\r\nHost: isolane\r\n\r\n");
    let mut socket = connect(path, TIMEOUT)?;
    socket.write_all(head.as_bytes()).map_err(|error| error.to_string())?;
    let mut lines = BufReader::new(socket);
    let mut read = || {
        let mut line = String::new();
        match lines.by_ref().take(MAX_LINE).read_line(&mut line) {
            Ok(0) => Err("the program has ended, or closed the connection".to_owned()),
            Ok(_) => Ok(line),
            Err(error) => Err(error.to_string()),
        }
    };
    let status = read()?;
    while !read()?.trim_end().is_empty() {}
    if status.split(' ').nth(1) != Some("200") {
        let problem: Value = serde_json::from_str(&read()?).unwrap_or_default();
        let detail = problem["detail"].as_str().map(str::to_owned);
        return Err(
            detail.unwrap_or_else(|| format!("the program rejects the request: {}", status.trim_end()))
        );
    }
    while next(read()?.trim_end()) {}
    Ok(())
}

/// Sends a request, and returns status and body of the response.
fn send(path: &Path, request: &[u8], limit: usize, time: Duration) -> Result<(u16, Vec<u8>), String> {
    let until = Instant::now() + time;
    let socket = connect(path, time)?;
    let response = exchange(socket, request, limit, until).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => late(time),
        _ => error.to_string(),
    })?;
    if response.len() > limit { Err(too_long(limit)) } else { take_body(response) }
}

fn late(time: Duration) -> String {
    format!("no response within {} s; the program may be stopped or overloaded", time.as_secs())
}

/// Connects to a program of a user that this one trusts.
fn connect(path: &Path, time: Duration) -> Result<UnixStream, String> {
    let socket = unix_socket::connect(path, time).map_err(|error| match error {
        Errno::ACCESS => "permission denied; run as the user of the program".to_owned(),
        Errno::NOENT => "no such socket; name a control socket, or a target as nvme+tcp://HOST".to_owned(),
        // A link to a socket is one here.
        Errno::CONNREFUSED if !path.canonicalize().is_ok_and(|path| unix_socket::is_socket(&path)) => {
            "not a socket; read a file of `isolane snapshot` with --from".to_owned()
        }
        Errno::CONNREFUSED => "no program listens there; it may have ended".to_owned(),
        Errno::AGAIN => late(time),
        _ => error.to_string(),
    })?;
    check_server(&socket)?;
    Ok(socket)
}

fn check_server(socket: &UnixStream) -> Result<(), String> {
    let server = socket_peercred(socket).map_err(|error| error.to_string())?.uid.as_raw();
    if is_trusted(server) || rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(format!("the program belongs to user {server}; run as that user"))
    }
}

/// Sends a request, within the time of the connection, and returns the response.
fn exchange(
    mut socket: UnixStream,
    request: &[u8],
    limit: usize,
    until: Instant,
) -> std::io::Result<Vec<u8>> {
    socket.write_all(request)?;
    let (mut response, mut chunk) = (Vec::new(), vec![0; 256 << 10]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(&mut chunk) {
            Ok(0) => return Ok(response),
            Ok(len) => response.extend_from_slice(&chunk[..len]),
            // A read with a timeout also ends if the process was stopped in between.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if response.len() > limit {
            return Ok(response);
        }
    }
}

fn take_body(mut response: Vec<u8>) -> Result<(u16, Vec<u8>), String> {
    let invalid = || "the response is not HTTP; name the control socket of a program".to_owned();
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let parsed = head.parse(&response).map_err(|_| invalid())?;
    let httparse::Status::Complete(start) = parsed else { return Err(invalid()) };
    let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse::<usize>().ok());
    let code = head.code.unwrap_or(0);
    response.drain(..start);
    if length.is_some_and(|length| length != response.len()) {
        return Err("the response is truncated; try again".to_owned());
    }
    Ok((code, response))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Returns the result for a server that sends these bytes.
    fn result(sent: &'static [u8], limit: usize) -> Result<Vec<u8>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("serve-1.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let mut socket = listener.accept().unwrap().0;
            let _ = socket.read(&mut [0; 1024]);
            let _ = socket.write_all(sent);
        });
        let result = get(&path, "/snapshot.json", limit);
        server.join().unwrap();
        result
    }

    #[test]
    fn paths_without_program_have_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "{}").unwrap();
        drop(UnixListener::bind(path("dead")).unwrap());
        for (name, reason) in [
            ("absent", "no such socket; name a control socket"),
            ("file", "not a socket; read a file"),
            (".", "not a socket; read a file"),
            ("dead", "no program listens there"),
        ] {
            let error = get(&path(name), "/snapshot.json", 100).unwrap_err();
            assert!(error.contains(reason), "{name}: {error}");
        }
    }

    #[test]
    fn returns_the_body() {
        assert_eq!(result(b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}", 100).unwrap(), b"{}");
        assert_eq!(result(b"HTTP/1.1 200 OK\r\n\r\n", 100).unwrap(), b"");
    }

    #[test]
    fn rejects_other_responses() {
        for (sent, reason) in [
            (&b"HTTP/1.0 503 Busy\r\n\r\n"[..], "status 503"),
            (b"HTTP/1.0 404 No\r\n\r\n", "same version"),
            (b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\n{}", "truncated"),
            (b"HTTP/1.0 200 OK\r\n", "not HTTP"),
            (b"SSH-2.0-x\r\n\r\n", "not HTTP"),
            (b"", "not HTTP"),
        ] {
            let error = result(sent, 100).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(result(b"HTTP/1.0 200 OK\r\n\r\n0123456789", 20).unwrap_err().contains("longer"));
    }

    #[test]
    fn reports_programs_that_accept_no_connection() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("serve-1.sock");
        let _stopped = unix_socket::tests::stopped_listener(&path);
        let error = get_within(&path, "/", 1, Duration::from_millis(20)).unwrap_err();
        assert!(error.contains("may be stopped"), "{error}");
    }

    #[test]
    fn reports_programs_that_have_ended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("serve-1.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(get(&path, "/", 1).unwrap_err().contains("may have ended"));
    }
}
