//! Fuzz targets for every decoder and machine, on stable Rust.
//!
//! Each target is a function that takes `&[u8]` and panics on a finding. Targets cover the decoders of
//! `isolane-wire` and `isolane-verbs`, the connections of `isolane-proto`, the input that an isolated engine
//! reads from its clients (messages, ring entries, stream control blocks), the rings of `isolane-shm`, the
//! queue pairs of `isolane-verbs`, the parsers of `/proc` and `/sys`, the log page that a host reads, the
//! connection of an NBD client, the queue of a virtual machine, configuration files, both sides of authentication, and
//! the verdict about a snapshot.
//! `tests/decoders.rs` finds decoders without a target. The runner mutates a corpus from a seed, without coverage
//! feedback. `cargo test` makes a short run, the program `fuzz` a long one.
//!
//! Invariant: a run depends only on target, seed, and number of iterations; `engine-stream` also depends on
//! the kernel's TCP.
#![forbid(unsafe_code)]

mod auth;
mod config;
mod corpus;
mod decoders;
mod host_page;
mod input;
mod nbd;
mod runner;
mod snapshot;
mod system;
mod targets;
mod vhost;

pub use runner::{replay, run};

/// Fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name on the command line.
    pub name: &'static str,
    /// Runs an input; panics if the code under test misbehaves.
    pub check: fn(&[u8]),
    /// Inputs to mutate: golden vectors and whole dialogues.
    pub corpus: fn() -> Vec<Vec<u8>>,
}

/// Returns all targets.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    TARGETS
        .iter()
        .chain(system::TARGETS)
        .chain(snapshot::TARGETS)
        .chain(host_page::TARGETS)
        .chain(nbd::TARGETS)
        .chain(vhost::TARGETS)
        .chain(config::TARGETS)
        .chain(auth::TARGETS)
}

const TARGETS: &[Target] = &[
    Target { name: "host-pdu", check: decoders::host_pdu, corpus: corpus::host_pdus },
    Target { name: "controller-pdu", check: decoders::controller_pdu, corpus: corpus::controller_pdus },
    Target { name: "command", check: decoders::command, corpus: corpus::commands },
    Target { name: "completion", check: decoders::completion, corpus: corpus::completions },
    Target { name: "connect-data", check: decoders::connect_data, corpus: corpus::connect_data },
    Target { name: "nqn", check: decoders::nqn, corpus: corpus::nqns },
    Target { name: "identify", check: decoders::identify, corpus: corpus::identify },
    Target { name: "descriptors", check: decoders::descriptors, corpus: corpus::descriptors },
    Target { name: "log-page", check: decoders::log_page, corpus: corpus::log_pages },
    Target { name: "digest", check: decoders::digest, corpus: corpus::host_pdus },
    Target { name: "control-request", check: decoders::control_request, corpus: corpus::control_requests },
    Target { name: "control-reply", check: decoders::control_reply, corpus: corpus::control_replies },
    Target { name: "engine-entry", check: decoders::engine_entry, corpus: corpus::engine_entries },
    Target { name: "volume-details", check: decoders::volume_details, corpus: corpus::volume_details },
    Target { name: "volume-answer", check: decoders::volume_answer, corpus: corpus::volume_answers },
    Target { name: "io-command", check: targets::io_command, corpus: corpus::io_commands },
    Target { name: "port", check: targets::port, corpus: corpus::port_dialogues },
    Target { name: "target-stream", check: targets::target_stream, corpus: corpus::host_streams },
    Target { name: "target-dialogue", check: targets::target_dialogue, corpus: corpus::target_dialogues },
    Target { name: "host-stream", check: targets::host_stream, corpus: corpus::controller_streams },
    Target { name: "host-dialogue", check: targets::host_dialogue, corpus: corpus::host_dialogues },
    Target { name: "engine-stream", check: targets::engine_stream, corpus: corpus::engine_dialogues },
    Target { name: "rings", check: targets::rings, corpus: corpus::ring_dialogues },
    Target { name: "verbs-hello", check: decoders::verbs_hello, corpus: corpus::verbs_hellos },
    Target { name: "verbs-segment", check: decoders::verbs_segment, corpus: corpus::verbs_segments },
    Target { name: "verbs-datagram", check: decoders::verbs_datagram, corpus: corpus::verbs_datagrams },
    Target {
        name: "verbs-connection-message",
        check: decoders::verbs_connection_message,
        corpus: corpus::verbs_connection_messages,
    },
    Target { name: "verbs-peer", check: targets::verbs_peer, corpus: corpus::verbs_dialogues },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn short_runs_have_no_finding() {
        for target in targets() {
            if let Err(finding) = run(target, 500, 1) {
                panic!("{finding}");
            }
        }
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<&str> = targets().map(|target| target.name).collect();
        assert_eq!(names.len(), targets().count());
    }
}
