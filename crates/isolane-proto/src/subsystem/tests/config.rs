//! Invalid configurations are rejected at start, with the remedy.

use super::*;

#[track_caller]
fn assert_rejected(break_config: impl FnOnce(&mut PortConfig), text: &str) {
    let mut config = config();
    break_config(&mut config);
    let error = Port::new(config).map(drop).unwrap_err();
    assert_eq!(error.to_string(), text);
}

#[test]
fn rejects_invalid_names_and_texts() {
    assert_rejected(
        |config| config.subsystems[0].nqn = Nqn::discovery(),
        "nqn.2014-08.org.nvmexpress.discovery is the name of the discovery service: choose another name for \
         the subsystem",
    );
    assert_rejected(
        |config| config.subsystems[0].serial = "0123456789abcdef01234".into(),
        "serial number \"0123456789abcdef01234\" is longer than 20 characters or not printable ASCII: shorten it",
    );
    assert_rejected(
        |config| config.subsystems[0].firmware = "1.0\n".into(),
        "firmware revision \"1.0\\n\" is longer than 8 characters or not printable ASCII: shorten it",
    );
}

#[test]
fn checks_namespace_config() {
    let second = |config: &mut PortConfig, change: fn(&mut NamespaceConfig)| {
        change(&mut config.subsystems[0].namespaces[1]);
    };
    for nsid in ["0", "1025"] {
        let text = format!("namespace ID {nsid} is not between 1 and 1024: choose another");
        assert_rejected(|config| config.subsystems[0].namespaces[1].nsid = nsid.parse().unwrap(), &text);
    }
    assert_rejected(
        |config| second(config, |namespace| namespace.nsid = 1),
        "namespace ID 1 is given twice: choose another for one of them",
    );
    assert_rejected(
        |config| second(config, |namespace| namespace.geometry.blocks = 0),
        "namespace 3 has no blocks: give it a size of at least one block",
    );
    assert_rejected(
        |config| second(config, |namespace| namespace.geometry.block_shift = 10),
        "namespace 3 has blocks of 2^10 bytes: use 512 or 4096 bytes",
    );
}

#[test]
fn rejects_limits_outside_protocol() {
    assert_rejected(
        |config| config.subsystems[0].max_io_queues = 0,
        "max_io_queues is 0: it must be between 1 and 65534",
    );
    assert_rejected(
        |config| config.subsystems[0].max_queue_entries = 1,
        "max_queue_entries is 1: it must be between 2 and 65535",
    );
    assert_rejected(
        |config| config.subsystems[0].max_in_capsule_bytes = 24,
        "max_in_capsule_bytes is 24: it must be a multiple of 16",
    );
    assert_rejected(
        |config| config.subsystems[0].max_transfer_bytes = 3 << 19,
        "max_transfer_bytes is 1572864: it must be a power of two",
    );
    assert_rejected(
        |config| config.max_associations = 0,
        "max_associations is 0: it must be between 1 and 61440",
    );
}
