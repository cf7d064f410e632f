//! Fuzz targets for every decoder and machine, on stable Rust.
//!
//! What it is: one plain function over bytes for each decoder of `isolane-wire`, each machine of
//! `isolane-proto`, all that an isolated engine reads of its clients (messages, entries of rings, the words of
//! streams) and the rings of `isolane-ring`, inputs to start from, and a runner that mutates them from a seed. `cargo test` makes a short run; the program `fuzz` makes a long one and plays a single input
//! again. What it is not: guided by coverage; the functions are ready for an engine that is (each takes
//! `&[u8]` and panics on a finding).
//!
//! Invariant: a run is a function of target, seed and number of iterations; nothing else has influence on it,
//! but the kernel's TCP on `engine-stream`.
#![forbid(unsafe_code)]

mod corpus;
mod decoders;
mod input;
mod machines;
mod mutate;
mod runner;

pub use runner::{Finding, replay, run};

/// One thing to fuzz.
#[derive(Clone, Copy)]
pub struct Target {
    /// What it is called on the command line.
    pub name: &'static str,
    /// Takes an input; panics if the code under test breaks a promise.
    pub check: fn(&[u8]),
    /// Inputs that are worth changing: golden vectors and whole dialogues.
    pub corpus: fn() -> Vec<Vec<u8>>,
}

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Every target.
pub const TARGETS: &[Target] = &[
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
    Target { name: "io-command", check: machines::io_command, corpus: corpus::io_commands },
    Target { name: "port", check: machines::port, corpus: corpus::port_dialogues },
    Target { name: "target-stream", check: machines::target_stream, corpus: corpus::host_streams },
    Target { name: "target-dialogue", check: machines::target_dialogue, corpus: corpus::target_dialogues },
    Target { name: "host-stream", check: machines::host_stream, corpus: corpus::controller_streams },
    Target { name: "host-dialogue", check: machines::host_dialogue, corpus: corpus::host_dialogues },
    Target { name: "engine-stream", check: machines::engine_stream, corpus: corpus::engine_dialogues },
    Target { name: "rings", check: machines::rings, corpus: corpus::ring_dialogues },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A short run of every target; a finding names the input to play again.
    #[test]
    fn no_target_finds_anything_in_a_short_run() {
        for target in TARGETS {
            if let Err(finding) = run(target, 500, 1) {
                panic!("{finding}");
            }
        }
    }

    #[test]
    fn names_are_unique() {
        for target in TARGETS {
            assert_eq!(
                TARGETS.iter().filter(|other| other.name == target.name).count(),
                1,
                "{}",
                target.name
            );
        }
    }
}
