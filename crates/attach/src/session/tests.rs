//! Whom a session is opened with.

use std::os::fd::OwnedFd;

use rustix::net::{accept, bind, listen};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use super::*;

/// An engine of another user, who has been first to make the folder.
const STRANGER: u32 = 54_321;

#[test]
fn the_engine_of_another_user_is_told_nothing_unless_it_is_trusted() {
    if !geteuid().is_root() {
        eprintln!("only root can be two users: not tried");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options { path: folder.path().join("sock"), starts: false, ..Options::default() };
    let listener = listener_of(STRANGER, &options.path);
    let error = Session::open(&options).unwrap_err();
    assert!(matches!(error, AttachError::Untrusted { uid: STRANGER, .. }), "{error}");
    assert!(error.to_string().contains("user 54321"), "{error}");
    let wire = Wire::new(accept(&listener).unwrap());
    assert!(matches!(wire.receive(true), Err(WireError::Closed)), "it was told something");

    options.trusted_uids = uids("nobody, 54321");
    std::thread::scope(|scope| {
        let session = scope.spawn(|| Session::open(&options));
        let wire = Wire::new(accept(&listener).unwrap());
        assert_eq!(wire.receive(true).unwrap().unwrap().descriptors.len(), 1, "its memory");
        wire.send(&Reply::Refused("it is enough".into()).encode(1), &[], true).unwrap();
        let error = session.join().unwrap().unwrap_err();
        assert!(matches!(error, AttachError::Refused { .. }), "{error}");
    });
}

/// The kernel keeps who has called `listen`.
fn listener_of(uid: u32, path: &Path) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            set_thread_res_uid(None, Uid::from_raw(uid), None).unwrap();
            listen(&socket, 4).unwrap();
        });
        other.join().unwrap();
    });
    socket
}
