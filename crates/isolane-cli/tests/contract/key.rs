//! `isolane key`: files, and lines that never contain the key.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::{fail, succeed, text};

fn generate(directory: &Path, arguments: &[&str]) -> (String, String) {
    let path = text(&directory.join("host.key")).to_owned();
    let printed = succeed(&[&["key", "gen", &path], arguments].concat());
    (path, printed)
}

#[test]
fn generated_key_is_private_and_not_printed() {
    let directory = tempfile::tempdir().unwrap();
    let (path, printed) = generate(directory.path(), &["--hash", "sha384", "--length", "48"]);
    let key = fs::read_to_string(&path).unwrap();
    assert!(key.starts_with("DHHC-1:02:") && key.ends_with(":\n"), "{key}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(printed.contains(&path) && !printed.contains("DHHC-1"), "{printed}");
    assert_eq!(succeed(&["key", "check", &path]), format!("{path}: valid, 48 bytes, transform by SHA-384\n"));
    let error = fail(&["key", "gen", &path]);
    assert!(error.contains("File exists"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), key);
}

#[test]
fn lines_name_each_program_and_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = generate(directory.path(), &[]);
    let names = ["--host-nqn", "nqn.host", "--nqn", "nqn.sub"];
    let printed = succeed(&[&["key", "convert", &path][..], &names].concat());
    for line in [
        format!("cat {path} > /sys/kernel/config/nvmet/hosts/nqn.host/dhchap_key"),
        "nvmf_subsystem_add_host nqn.sub nqn.host --dhchap-key KEY".into(),
        format!("-n nqn.sub -q nqn.host --dhchap-secret \"$(cat {path})\""),
    ] {
        assert!(printed.contains(&line), "{line} is not in:\n{printed}");
    }
    let printed = succeed(&["key", "convert", &path, "--controller"]);
    for option in ["dhchap_ctrl_key", "--dhchap-ctrlr-key", "--dhchap-ctrl-secret"] {
        assert!(printed.contains(option), "{option} is not in:\n{printed}");
    }
}

#[test]
fn check_names_the_wrong_part() {
    let directory = tempfile::tempdir().unwrap();
    let (path, _) = generate(directory.path(), &[]);
    let key = fs::read_to_string(&path).unwrap();
    for (content, expected) in [
        (key.replace("DHHC-1:01", "DHHC-1:07"), "unknown hash"),
        (format!("{}AAAA:\n", &key.trim_end()[..key.len() - 2]), "bytes, not 32, 48, or 64"),
        (String::from("secret"), "not a key"),
    ] {
        fs::write(&path, content).unwrap();
        let error = fail(&["key", "check", &path]);
        assert!(error.contains(&path) && error.contains(expected), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
    fs::write(&path, &key).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let error = fail(&["key", "check", &path]);
    assert!(error.contains("chmod 600"), "{error}");
}
