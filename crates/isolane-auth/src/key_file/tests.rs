//! Files that are readable by others, not regular, or hold no key.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::key::KeyTransform;
use isolane_wire::auth::Hash;

fn error_of(text: &str, mode: u32) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.key");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    match KeyFile::read(&path) {
        Ok(_) => String::new(),
        Err(error) => error.to_string().replace(&*dir.path().to_string_lossy(), "DIR"),
    }
}

const KEY: &str = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";

#[test]
fn created_key_is_private_and_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.key");
    let key = Key::generate(Hash::Sha384, KeyTransform::None).unwrap();
    KeyFile::create(&path, &key).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert!(KeyFile::read(&path).unwrap().is_same_secret(&key));
    let error = KeyFile::create(&path, &key).unwrap_err().to_string();
    assert!(error.contains("host.key: cannot write the key: File exists"), "{error}");
}

#[test]
fn accepts_a_line_that_only_the_owner_can_read() {
    assert_eq!(error_of(&format!("{KEY}\n"), 0o600), "");
    assert_eq!(error_of(&format!("  {KEY} \n\n"), 0o400), "");
}

#[test]
fn rejects_files_of_other_users() {
    for (mode, shown) in [(0o640, "640"), (0o604, "604"), (0o620, "620"), (0o777, "777")] {
        let expected =
            format!("DIR/host.key: mode {shown} lets other users read or write the key; run chmod 600 on it");
        assert_eq!(error_of(KEY, mode), expected);
    }
}

#[test]
fn rejects_foreign_owner() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // As root, a file of another user: root itself is always accepted.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.key");
    KeyFile::create(&path, &Key::parse(KEY).unwrap()).unwrap();
    std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
    let error = KeyFile::read(&path).unwrap_err().to_string();
    let expected = "host.key: user 12345 owns the key, and this program runs as user 0; run chown 0 on it";
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn rejects_other_text_without_showing_it() {
    for text in ["", "secret", "DHHC-1:00:secret:"] {
        let error = error_of(text, 0o600);
        assert!(error.starts_with("DIR/host.key: ") && !error.contains("secret"), "{error}");
    }
    assert!(error_of(&format!("{KEY}\n{KEY}\n"), 0o600).contains("more than one key"));
    assert!(error_of(&" ".repeat(1 << 20), 0o600).contains("more than one key"));
}

#[test]
fn rejects_missing_file_directory_and_fifo() {
    let dir = tempfile::tempdir().unwrap();
    let error = KeyFile::read(&dir.path().join("missing")).unwrap_err().to_string();
    assert!(error.contains("cannot read the key: No such file"), "{error}");
    let error = KeyFile::read(dir.path()).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let error = KeyFile::read(&fifo).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
}
