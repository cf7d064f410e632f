//! Bit fields of Identify Controller.

codes! {
    /// CNTRLTYPE.
    pub enum ControllerType: u8 {
        Io = 0x01, "I/O controller";
        Discovery = 0x02, "discovery controller";
        Administrative = 0x03, "administrative controller";
    }
}

bits! {
    /// CMIC.
    pub struct Cmic(u8) {
        /// The subsystem may have several ports.
        ports / with_ports: bool = [0:0],
        /// The subsystem may have several controllers.
        controllers / with_controllers: bool = [1:1],
        /// The controller is an SR-IOV virtual function.
        virtual_function / with_virtual_function: bool = [2:2],
        /// Asymmetric namespace access is reported.
        ana / with_ana: bool = [3:3],
    }
}

bits! {
    /// OAES.
    pub struct Oaes(u32) {
        /// Namespace attribute notices.
        namespace_attribute / with_namespace_attribute: bool = [8:8],
        /// Firmware activation notices.
        firmware_activation / with_firmware_activation: bool = [9:9],
        /// Asymmetric namespace access change notices.
        asymmetric_access / with_asymmetric_access: bool = [11:11],
        /// Discovery log page change notices (discovery controllers).
        discovery_log / with_discovery_log: bool = [31:31],
    }
}

bits! {
    /// CTRATT.
    pub struct Ctratt(u32) {
        /// 128-bit host identifier.
        host_id_128 / with_host_id_128: bool = [0:0],
        /// Non-operational power state permissive mode.
        nopspm / with_nopspm: bool = [1:1],
        /// NVM sets.
        nvm_sets / with_nvm_sets: bool = [2:2],
        /// Read recovery levels.
        read_recovery_levels / with_read_recovery_levels: bool = [3:3],
        /// Endurance groups.
        endurance_groups / with_endurance_groups: bool = [4:4],
        /// Predictable latency mode.
        predictable_latency / with_predictable_latency: bool = [5:5],
        /// TBKAS: traffic based keep alive.
        tbkas / with_tbkas: bool = [6:6],
        /// Namespace granularity.
        namespace_granularity / with_namespace_granularity: bool = [7:7],
        /// SQ associations.
        sq_associations / with_sq_associations: bool = [8:8],
        /// UUID list.
        uuid_list / with_uuid_list: bool = [9:9],
    }
}

bits! {
    /// OACS.
    pub struct Oacs(u16) {
        /// Security Send and Receive.
        security / with_security: bool = [0:0],
        /// Format NVM.
        format / with_format: bool = [1:1],
        /// Firmware Commit and Image Download.
        firmware / with_firmware: bool = [2:2],
        /// Namespace Management and Attachment.
        namespace_management / with_namespace_management: bool = [3:3],
        /// Device Self-test.
        self_test / with_self_test: bool = [4:4],
        /// Directives.
        directives / with_directives: bool = [5:5],
        /// NVMe-MI Send and Receive.
        management_interface / with_management_interface: bool = [6:6],
        /// Virtualization Management.
        virtualization / with_virtualization: bool = [7:7],
        /// Doorbell Buffer Config.
        doorbell_buffer / with_doorbell_buffer: bool = [8:8],
        /// Get LBA Status.
        lba_status / with_lba_status: bool = [9:9],
    }
}

/// FRMW with this many slots (1 to 7), of which the first is read only or not; activation without reset.
pub fn firmware_updates(slots: u8, is_first_read_only: bool) -> u8 {
    FirmwareUpdates(0).with_first_read_only(is_first_read_only).with_slots(slots).0
}

bits! {
    /// FRMW.
    pub struct FirmwareUpdates(u8) {
        /// Slot 1 is read only.
        first_read_only / with_first_read_only: bool = [0:0],
        /// Number of slots.
        slots / with_slots: u8 = [3:1],
    }
}

bits! {
    /// LPA.
    pub struct LogPageAttributes(u8) {
        /// SMART per namespace.
        smart_per_namespace / with_smart_per_namespace: bool = [0:0],
        /// Commands supported and effects.
        command_effects / with_command_effects: bool = [1:1],
        /// Extended data: 32-bit NUMD and log page offsets.
        extended_data / with_extended_data: bool = [2:2],
        /// Telemetry.
        telemetry / with_telemetry: bool = [3:3],
        /// Persistent event log.
        persistent_event / with_persistent_event: bool = [4:4],
    }
}

bits! {
    /// ONCS.
    pub struct Oncs(u16) {
        /// Compare.
        compare / with_compare: bool = [0:0],
        /// Write Uncorrectable.
        write_uncorrectable / with_write_uncorrectable: bool = [1:1],
        /// Dataset Management.
        dataset_management / with_dataset_management: bool = [2:2],
        /// Write Zeroes.
        write_zeroes / with_write_zeroes: bool = [3:3],
        /// Save and Select of features.
        save_and_select / with_save_and_select: bool = [4:4],
        /// Reservations.
        reservations / with_reservations: bool = [5:5],
        /// Timestamp.
        timestamp / with_timestamp: bool = [6:6],
        /// Verify.
        verify / with_verify: bool = [7:7],
        /// Copy.
        copy / with_copy: bool = [8:8],
    }
}

bits! {
    /// FNA.
    pub struct Fna(u8) {
        /// Format applies to all namespaces.
        format_all / with_format_all: bool = [0:0],
        /// Secure erase applies to all namespaces.
        erase_all / with_erase_all: bool = [1:1],
        /// Cryptographic erase is supported.
        crypto_erase / with_crypto_erase: bool = [2:2],
    }
}

bits! {
    /// VWC.
    pub struct VolatileCache(u8) {
        /// There is a volatile write cache.
        present / with_present: bool = [0:0],
        /// Flush with NSID FFFFFFFFh: 10b is refused, 11b flushes all namespaces.
        flush_all / with_flush_all: u8 = [2:1],
    }
}

impl VolatileCache {
    /// Flush of all namespaces is refused.
    pub const FLUSH_ALL_REFUSED: u8 = 0b10;
    /// Flush of all namespaces is supported.
    pub const FLUSH_ALL_SUPPORTED: u8 = 0b11;
}

bits! {
    /// SGLS.
    pub struct SglSupport(u32) {
        /// 00b none, 01b any alignment, 10b dwords only.
        support / with_support: u8 = [1:0],
        /// Keyed SGL data blocks (RDMA).
        keyed / with_keyed: bool = [2:2],
        /// Bit buckets.
        bit_bucket / with_bit_bucket: bool = [16:16],
        /// Data longer than the SGL is allowed.
        larger_than_data / with_larger_than_data: bool = [18:18],
        /// An SGL address may be an offset: what in-capsule data needs.
        offset / with_offset: bool = [20:20],
        /// Transport SGL data blocks.
        transport / with_transport: bool = [21:21],
    }
}

bits! {
    /// FCATT.
    pub struct Fcatt(u8) {
        /// 0: dynamic controllers; 1: static controllers.
        static_controllers / with_static_controllers: bool = [0:0],
    }
}

bits! {
    /// OFCS.
    pub struct Ofcs(u16) {
        /// Disconnect of single I/O queues.
        disconnect / with_disconnect: bool = [0:0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_hosts_look_for_them() {
        assert_eq!(Cmic(0).with_ports(true).with_controllers(true).with_ana(true).0, 0b1011);
        assert_eq!(Oaes(0).with_namespace_attribute(true).with_discovery_log(true).0, 0x8000_0100);
        assert_eq!(Oaes(0).with_firmware_activation(true).with_asymmetric_access(true).0, 0xa00);
        assert_eq!(Ctratt(0).with_host_id_128(true).with_tbkas(true).with_uuid_list(true).0, 0x241);
        assert_eq!(Oacs(0).with_namespace_management(true).with_lba_status(true).0, 0x208);
        assert_eq!(firmware_updates(1, true), 0x03);
        assert_eq!(LogPageAttributes(0).with_command_effects(true).with_extended_data(true).0, 0b110);
        assert_eq!(Oncs(0).with_dataset_management(true).with_write_zeroes(true).with_copy(true).0, 0x10c);
        assert_eq!(Fna(0).with_erase_all(true).0, 2);
        assert_eq!(VolatileCache(0).with_present(true).with_flush_all(3).0, 0b111);
        assert_eq!(SglSupport(0).with_support(1).with_offset(true).with_transport(true).0, 0x0030_0001);
        assert_eq!((Fcatt(1).static_controllers(), Ofcs(1).disconnect()), (true, true));
    }
}

bits! {
    /// Vendor specific log pages of an Isolane target.
    pub struct VendorPages(u32) {
        /// Generation, CEh, of each namespace.
        generation / with_generation: bool = [0:0],
    }
}
