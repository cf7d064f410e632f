//! Commands supported and effects, 05h (Base 1.4 §5.14.1.5).

bits! {
    /// Effects of a command.
    pub struct CommandEffects(u32) {
        /// CSUPP: supported.
        supported / with_supported: bool = [0:0],
        /// LBCC: content of logical blocks may change.
        block_content / with_block_content: bool = [1:1],
        /// NCC: capabilities of a namespace may change.
        namespace_capability / with_namespace_capability: bool = [2:2],
        /// NIC: the set of namespaces may change.
        namespace_inventory / with_namespace_inventory: bool = [3:3],
        /// CCC: capabilities of the controller may change.
        controller_capability / with_controller_capability: bool = [4:4],
        /// CSE: 000b no restriction, 001b exclusive in its namespace, 010b exclusive in the
        /// subsystem.
        submission / with_submission: u8 = [18:16],
        /// UUID selection is supported.
        uuid_selection / with_uuid_selection: bool = [19:19],
    }
}

layout! {
    /// The page: one entry for every opcode.
    pub struct CommandEffectsLog[4096] {
        /// ACS: admin commands by opcode.
        0 => admin: [CommandEffects; 256],
        /// IOCS: I/O commands by opcode.
        1024 => io: [CommandEffects; 256],
    }
}
