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
        /// TBKAS: traffic based keep alive.
        tbkas / with_tbkas: bool = [6:6],
        /// UUID list.
        uuid_list / with_uuid_list: bool = [9:9],
    }
}

bits! {
    /// OACS.
    pub struct Oacs(u16) {
        /// Format NVM.
        format / with_format: bool = [1:1],
        /// Namespace Management and Attachment.
        namespace_management / with_namespace_management: bool = [3:3],
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
        /// Commands supported and effects.
        command_effects / with_command_effects: bool = [1:1],
        /// Extended data: 32-bit NUMD and log page offsets.
        extended_data / with_extended_data: bool = [2:2],
        /// Telemetry.
        telemetry / with_telemetry: bool = [3:3],
    }
}

bits! {
    /// ONCS.
    pub struct Oncs(u16) {
        /// Dataset Management.
        dataset_management / with_dataset_management: bool = [2:2],
        /// Write Zeroes.
        write_zeroes / with_write_zeroes: bool = [3:3],
        /// Copy.
        copy / with_copy: bool = [8:8],
    }
}

bits! {
    /// FNA.
    pub struct Fna(u8) {
        /// Secure erase applies to all namespaces.
        erase_all / with_erase_all: bool = [1:1],
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
}

bits! {
    /// SGLS.
    pub struct SglSupport(u32) {
        /// 00b none, 01b any alignment, 10b dwords only.
        support / with_support: u8 = [1:0],
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
        /// Stages of the host, C0h.
        host_stages / with_host_stages: bool = [1:1],
    }
}
