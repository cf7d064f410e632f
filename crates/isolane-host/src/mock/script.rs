//! Configuration of the mock target.

use std::collections::VecDeque;
use std::time::Duration;

use isolane_wire::log::GenerationLog;
use isolane_wire::{CompletionEntry, Status};

/// Its properties, and the one thing that goes wrong.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub block_bytes: u32,
    pub blocks: u64,
    /// 2^mdts pages of 4 KiB; 0: no limit.
    pub mdts: u8,
    pub in_capsule_bytes: u32,
    pub mqes: u16,
    pub max_lanes: u16,
    /// Without: Connect with CATTR bit 2 is refused.
    pub knows_flow_control: bool,
    /// Without: confirms nothing in SQHD.
    pub confirms_flow_control: bool,
    /// Controllers whose connections are gone stay.
    pub keeps_controllers: bool,
    /// The next controller gets the number of the last.
    pub reuses_numbers: bool,
    pub uuid: u128,
    pub nguid: Option<u128>,
    pub eui64: Option<u64>,
    pub metadata_bytes: u16,
    /// VWC: whether there is a volatile write cache.
    pub has_cache: bool,
    /// Whether Identify Controller carries the signature of Isolane's targets.
    pub isolane: bool,
    /// The generation page; without, it is refused.
    pub generation: Option<GenerationLog>,
    /// Each controller shows a volume of another identity.
    pub has_many_volumes: bool,
    pub nsids: Vec<u32>,
    /// A fault closes only connections of its controller.
    pub only_own_controller: bool,
    /// CRDT1-3.
    pub crdt: [u16; 3],
    /// Without: refuses Host Behavior Support.
    pub knows_host_behavior: bool,
    /// Statuses of the next I/O commands, none of which is executed if it is an error.
    pub statuses: VecDeque<Status>,
    /// Statuses with which the next Identify commands for descriptor lists fail.
    pub descriptor_statuses: VecDeque<Status>,
    /// CQT.
    pub cqt_ms: u16,
    /// The response to every Connect of a queue id beyond `max_lanes`, whatever controllers there are.
    pub probe_response: Option<CompletionEntry>,
    /// CSTS.SHST becomes "complete" after CC.SHN.
    pub completes_shutdown: bool,
    /// Answers no Keep Alive.
    pub ignores_keep_alive: bool,
    pub has_digests: bool,
    /// I/O commands from this block on get no answer.
    pub silent_from: Option<u64>,
    /// Number of I/O commands before the fault, and the fault.
    pub fault: Option<(u32, Fault)>,
}

/// One way to be wrong, done once, at an I/O command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Closes all connections instead of answering; a write is not applied.
    Close,
    /// Applies a write, then closes all connections.
    ApplyAndClose,
    /// Closes all connections; a write is applied after this delay, and only then is the controller gone.
    LandLate(Duration),
    /// Never answers.
    Silence,
    /// Data for a command that does not exist.
    UnknownCommand,
    /// Data beyond the command's.
    DataBeyond,
    /// Asks for data beyond the command's.
    R2tBeyond,
    /// Success before the data.
    EarlySuccess,
    /// The data digest of a read is wrong.
    DataDigest,
    /// The header digest of a response is wrong.
    HeaderDigest,
    /// Says that a write's data digest was wrong.
    RefuseDigest,
    /// Sends bytes that are not a PDU.
    Garbage,
    /// Ends the connection with a termination request.
    Terminate,
    /// Closes in the middle of a read's data.
    CloseMidway,
    /// Tells that the namespace has twice the blocks.
    Grow,
}

impl Default for Script {
    fn default() -> Script {
        Script {
            block_bytes: 512,
            blocks: 8192,
            mdts: 4,
            in_capsule_bytes: 4096,
            mqes: 127,
            max_lanes: 8,
            knows_flow_control: true,
            confirms_flow_control: true,
            keeps_controllers: false,
            reuses_numbers: false,
            uuid: 7,
            nguid: None,
            eui64: None,
            metadata_bytes: 0,
            has_cache: true,
            isolane: false,
            generation: None,
            has_many_volumes: false,
            only_own_controller: false,
            nsids: vec![1],
            crdt: [0; 3],
            knows_host_behavior: true,
            statuses: VecDeque::new(),
            descriptor_statuses: VecDeque::new(),
            cqt_ms: 0,
            probe_response: None,
            completes_shutdown: true,
            ignores_keep_alive: false,
            has_digests: true,
            silent_from: None,
            fault: None,
        }
    }
}
