//! Features and their values in dword 11 or dword 0 (Base 1.4 §5.21).

codes! {
    /// FID: feature identifier.
    pub enum FeatureId: u8 {
        Arbitration = 0x01, "arbitration";
        PowerManagement = 0x02, "power management";
        TemperatureThreshold = 0x04, "temperature threshold";
        ErrorRecovery = 0x05, "error recovery";
        VolatileWriteCache = 0x06, "volatile write cache";
        NumberOfQueues = 0x07, "number of queues";
        InterruptCoalescing = 0x08, "interrupt coalescing";
        InterruptVector = 0x09, "interrupt vector configuration";
        WriteAtomicity = 0x0a, "write atomicity normal";
        AsyncEventConfiguration = 0x0b, "asynchronous event configuration";
        KeepAliveTimer = 0x0f, "keep alive timer";
        HostBehaviorSupport = 0x16, "host behavior support";
        HostIdentifier = 0x81, "host identifier";
    }
}

bits! {
    /// Arbitration.
    pub struct Arbitration(u32) {
        /// AB: arbitration burst of 2^n commands; 111b is no limit.
        ab / with_ab: u8 = [2:0],
        /// LPW: weight of low priority, 0's based.
        lpw / with_lpw: u8 = [15:8],
        /// MPW: weight of medium priority, 0's based.
        mpw / with_mpw: u8 = [23:16],
        /// HPW: weight of high priority, 0's based.
        hpw / with_hpw: u8 = [31:24],
    }
}

bits! {
    /// Power management.
    pub struct PowerManagement(u32) {
        /// PS: power state.
        ps / with_ps: u8 = [4:0],
        /// WH: workload hint.
        wh / with_wh: u8 = [7:5],
    }
}

bits! {
    /// Temperature threshold.
    pub struct TemperatureThreshold(u32) {
        /// TMPTH: threshold in kelvins.
        tmpth / with_tmpth: u16 = [15:0],
        /// TMPSEL: sensor; 0 is the composite temperature.
        tmpsel / with_tmpsel: u8 = [19:16],
        /// THSEL: 0 is the over, 1 the under temperature threshold.
        thsel / with_thsel: u8 = [21:20],
    }
}

bits! {
    /// Error recovery.
    pub struct ErrorRecovery(u32) {
        /// TLER: time limited error recovery, in units of 100 ms.
        tler / with_tler: u16 = [15:0],
        /// DULBE: reads of deallocated or unwritten blocks are an error.
        dulbe / with_dulbe: bool = [16:16],
    }
}

bits! {
    /// Volatile write cache.
    pub struct VolatileWriteCache(u32) {
        /// WCE: the cache is enabled.
        wce / with_wce: bool = [0:0],
    }
}

bits! {
    /// Number of queues, 0's based: requested in dword 11, granted in dword 0.
    pub struct NumberOfQueues(u32) {
        /// I/O submission queues.
        submission / with_submission: u16 = [15:0],
        /// I/O completion queues.
        completion / with_completion: u16 = [31:16],
    }
}

bits! {
    /// Interrupt coalescing.
    pub struct InterruptCoalescing(u32) {
        /// THR: completions to gather before an interrupt, 0's based.
        thr / with_thr: u8 = [7:0],
        /// TIME: maximum delay of an interrupt, in units of 100 µs; 0 disables it.
        time / with_time: u8 = [15:8],
    }
}

bits! {
    /// Interrupt vector configuration.
    pub struct InterruptVector(u32) {
        /// IV: the vector.
        iv / with_iv: u16 = [15:0],
        /// CD: interrupts of the vector are not coalesced.
        cd / with_cd: bool = [16:16],
    }
}

bits! {
    /// Write atomicity normal.
    pub struct WriteAtomicity(u32) {
        /// DN: the host does not need more than AWUPF.
        dn / with_dn: bool = [0:0],
    }
}

bits! {
    /// Asynchronous event configuration: events that may be sent.
    pub struct AsyncEventConfiguration(u32) {
        /// SMART / health critical warnings, one bit each.
        smart / with_smart: u8 = [7:0],
        /// Namespace attribute notices.
        namespace_attribute / with_namespace_attribute: bool = [8:8],
        /// Firmware activation notices.
        firmware_activation / with_firmware_activation: bool = [9:9],
        /// Telemetry log notices.
        telemetry / with_telemetry: bool = [10:10],
        /// Asymmetric namespace access change notices.
        asymmetric_access / with_asymmetric_access: bool = [11:11],
        /// Discovery log page change notices.
        discovery_log / with_discovery_log: bool = [31:31],
    }
}

bits! {
    /// Dword 11 of host identifier.
    pub struct HostIdentifierFormat(u32) {
        /// EXHID: 128-bit identifier; the only one over Fabrics.
        exhid / with_exhid: bool = [0:0],
    }
}

layout! {
    /// Data of host behavior support.
    pub struct HostBehaviorSupport[512] {
        /// ACRE: the host understands Command Interrupted and the retry delays.
        0 => acre: u8,
        /// ETDAS: extended telemetry data area 4.
        1 => etdas: u8,
        /// LBAFEE: extended LBA formats.
        2 => lbafee: u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_each_field_in_its_place() {
        assert_eq!(NumberOfQueues(0).with_submission(0x1234).with_completion(0x5678).0, 0x5678_1234);
        assert_eq!(Arbitration(0).with_ab(7).with_lpw(1).with_mpw(2).with_hpw(3).0, 0x0302_0107);
        assert_eq!(PowerManagement(0).with_ps(0x15).with_wh(5).0, 0xb5);
        assert_eq!(ErrorRecovery(0).with_tler(0x1234).with_dulbe(true).0, 0x0001_1234);
        assert_eq!(InterruptCoalescing(0).with_thr(0x12).with_time(0x34).0, 0x3412);
        assert_eq!(InterruptVector(0).with_iv(0x1234).with_cd(true).0, 0x0001_1234);
        assert_eq!(TemperatureThreshold(0).with_tmpth(343).with_tmpsel(2).with_thsel(1).0, 0x0012_0157);
    }

    #[test]
    fn event_configuration_uses_single_bits() {
        let none = AsyncEventConfiguration(0);
        assert_eq!(none.with_smart(0xa5).with_namespace_attribute(true).0, 0x1a5);
        assert_eq!(none.with_firmware_activation(true).with_telemetry(true).0, 0x600);
        assert_eq!(none.with_asymmetric_access(true).with_discovery_log(true).0, 0x8000_0800);
    }

    #[test]
    fn host_behavior_support_begins_with_its_three_bytes() {
        let bytes = HostBehaviorSupport { acre: 1, etdas: 2, lbafee: 3 }.encode();
        assert_eq!((bytes[0], bytes[1], bytes[2], bytes[3]), (1, 2, 3, 0));
    }
}
