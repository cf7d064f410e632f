//! Operations, size classes, and the stages into which the time of a command is divided.

use serde::{Deserialize, Serialize};

/// Program or library that measures a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// From the receive that delivered the command until the kernel has accepted the last byte of the response.
    Target,
    /// From the submission until the caller's thread runs.
    Host,
    /// From the ring of an application back to it.
    Engine,
    /// Bytes of an engine's stream, in one direction: between the ring of the application and the kernel.
    Stream,
    /// Requests of a queue pair of verbs: from the post until the program has fetched the completion.
    Verbs,
}

/// Stage of a command. Each side uses some of them, in this order ([`Side::stages`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Target: received → its processing starts, or for a command that completes in the same turn, the send starts.
    Batch,
    /// Target: waits for pages of the pool or for its share of them.
    Memory,
    /// Target: waits for its turn to request data, and for the data.
    Transfer,
    /// Target: waits for another command on the same blocks.
    Blocks,
    /// Target: held back by a limit on purpose.
    Limit,
    /// Target: submitted to the volume → handed to the kernel, a member, or a file thread.
    Queue,
    /// Target: handed over → the result is known.
    Device,
    /// Target: result known → its send starts.
    Answer,
    /// Target: send starts → the kernel has accepted the last byte.
    Socket,
    /// Target: accepted by the kernel → acknowledged by the peer; never part of the total.
    Peer,
    /// Engine: pushed into the shared-memory ring → polled.
    Ring,
    /// Host: submitted → taken by the leader thread.
    Inbox,
    /// Host: delayed by coalescing or by a full queue.
    Held,
    /// Host: queued → the kernel has accepted the command. Verbs: → the kernel has accepted the last segment.
    Send,
    /// Host: → the first byte of the response is received. Covers network and target.
    Wait,
    /// Host: → the last byte of the response is received.
    Data,
    /// Host: → handed to the caller.
    Deliver,
    /// Host: → the caller's thread runs.
    Wake,
    /// Engine: → published to the application.
    Outcome,
    /// Engine: → fetched by the application.
    Notice,
    /// Stream: published by the application → accepted by the kernel.
    Tx,
    /// Stream: received from the kernel → fetched by the application.
    Rx,
    /// Verbs: posted → its first segment is queued for a lane, without the stage `receiver-not-ready`.
    Post,
    /// Verbs: the peer has no receive for it, or for a request before it.
    ReceiverNotReady,
    /// Verbs: accepted by the kernel → acknowledged or answered by the peer.
    Ack,
    /// Verbs: completion queued → fetched by the program; 0 for a request without a completion.
    Poll,
}

/// Number of stages of the side with the most.
pub const MAX_STAGES: usize = 9;

impl Side {
    /// Returns the stages that add up to the total of a command, in their order.
    pub const fn stages(self) -> &'static [Stage] {
        use Stage::*;
        match self {
            Side::Target => &[Batch, Memory, Transfer, Blocks, Limit, Queue, Device, Answer, Socket],
            Side::Host => &[Inbox, Held, Send, Wait, Data, Deliver, Wake],
            Side::Engine => &[Ring, Held, Send, Wait, Data, Deliver, Outcome, Notice],
            Side::Stream => &[Tx, Rx],
            Side::Verbs => &[Post, ReceiverNotReady, Send, Ack, Poll],
        }
    }

    /// Returns the position of a stage in [`Side::stages`].
    pub fn position_of(self, stage: Stage) -> Option<usize> {
        self.stages().iter().position(|at| *at == stage)
    }

    /// Returns the name in text and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Target => "target",
            Side::Host => "host",
            Side::Engine => "engine",
            Side::Stream => "stream",
            Side::Verbs => "verbs",
        }
    }
}

impl Stage {
    /// Returns the name in text and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Batch => "batch",
            Stage::Memory => "memory",
            Stage::Transfer => "transfer",
            Stage::Blocks => "blocks",
            Stage::Limit => "limit",
            Stage::Queue => "queue",
            Stage::Device => "device",
            Stage::Answer => "answer",
            Stage::Socket => "socket",
            Stage::Peer => "peer",
            Stage::Ring => "ring",
            Stage::Inbox => "inbox",
            Stage::Held => "held",
            Stage::Send => "send",
            Stage::Wait => "wait",
            Stage::Data => "data",
            Stage::Deliver => "deliver",
            Stage::Wake => "wake",
            Stage::Outcome => "outcome",
            Stage::Notice => "notice",
            Stage::Tx => "tx",
            Stage::Rx => "rx",
            Stage::Post => "post",
            Stage::ReceiverNotReady => "receiver-not-ready",
            Stage::Ack => "ack",
            Stage::Poll => "poll",
        }
    }
}

/// Kind of an operation; each is counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Write Zeroes.
    WriteZeroes,
    /// Dataset Management with the deallocate attribute.
    Deallocate,
    /// SEND of a queue pair.
    Send,
    /// Atomic operation of a queue pair.
    Atomic,
}

impl Operation {
    /// All kinds of a volume.
    pub const ALL: [Operation; 5] =
        [Operation::Read, Operation::Write, Operation::Flush, Operation::WriteZeroes, Operation::Deallocate];

    /// Returns the name in text and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Flush => "flush",
            Operation::WriteZeroes => "write-zeroes",
            Operation::Deallocate => "deallocate",
            Operation::Send => "send",
            Operation::Atomic => "atomic",
        }
    }
}

/// Class of the size of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SizeClass {
    /// At most 4 KiB, also operations without data.
    Small,
    /// At most 64 KiB.
    Medium,
    /// Larger.
    Large,
}

/// Returns all operations of a volume, with each size class.
pub fn kinds() -> impl Iterator<Item = (Operation, SizeClass)> {
    Operation::ALL.into_iter().flat_map(|operation| SizeClass::ALL.map(|size| (operation, size)))
}

impl SizeClass {
    /// All classes.
    pub const ALL: [SizeClass; 3] = [SizeClass::Small, SizeClass::Medium, SizeClass::Large];

    /// Returns the class of a length in bytes.
    #[inline]
    pub const fn from_len(bytes: u64) -> SizeClass {
        if bytes <= 4096 {
            SizeClass::Small
        } else if bytes <= 65536 {
            SizeClass::Medium
        } else {
            SizeClass::Large
        }
    }

    /// Returns the name in text and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            SizeClass::Small => "4K",
            SizeClass::Medium => "64K",
            SizeClass::Large => "large",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDES: [Side; 5] = [Side::Target, Side::Host, Side::Engine, Side::Stream, Side::Verbs];

    #[test]
    fn each_side_fits_the_arrays() {
        for side in SIDES {
            assert!(side.stages().len() <= MAX_STAGES);
            for (position, stage) in side.stages().iter().enumerate() {
                assert_eq!(side.position_of(*stage), Some(position));
            }
        }
        assert_eq!(Side::Target.position_of(Stage::Peer), None, "never part of the total");
    }

    #[test]
    fn names_are_those_of_the_document() {
        for side in SIDES {
            for stage in side.stages() {
                assert_eq!(serde_json::to_value(stage).expect("JSON"), stage.name());
            }
        }
        for operation in Operation::ALL.into_iter().chain([Operation::Send, Operation::Atomic]) {
            assert_eq!(serde_json::to_value(operation).expect("JSON"), operation.name());
        }
    }

    #[test]
    fn borders_belong_to_the_smaller_class() {
        let classes = [0, 4096, 4097, 65536, 65537].map(SizeClass::from_len);
        use SizeClass::*;
        assert_eq!(classes, [Small, Small, Medium, Medium, Large]);
    }
}
