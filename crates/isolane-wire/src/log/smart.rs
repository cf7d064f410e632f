//! SMART / health information, 02h (Base 1.4 §5.14.1.2).

bits! {
    /// Critical warning.
    pub struct CriticalWarning(u8) {
        /// Spare capacity is below its threshold.
        spare / with_spare: bool = [0:0],
        /// Reliability is degraded.
        reliability / with_reliability: bool = [2:2],
        /// The media are read only.
        read_only / with_read_only: bool = [3:3],
    }
}

layout! {
    /// The page.
    pub struct Smart[512] {
        /// Critical warning.
        0 => critical_warning: CriticalWarning,
        /// Composite temperature in kelvins.
        1 => temperature_kelvin: u16,
        /// Spare capacity left in percent.
        3 => available_spare_percent: u8,
        /// Spare capacity below which a warning is given, in percent.
        4 => available_spare_threshold_percent: u8,
        /// Endurance used in percent.
        5 => percentage_used: u8,
        /// Endurance group critical warnings.
        6 => endurance_group_warning: u8,
        /// Data read, in thousands of 512 bytes, rounded up.
        32 => data_units_read: u128,
        /// Data written, in thousands of 512 bytes, rounded up.
        48 => data_units_written: u128,
        /// Read and Compare commands.
        64 => host_read_commands: u128,
        /// Write commands.
        80 => host_write_commands: u128,
        /// Time busy with I/O, in minutes.
        96 => controller_busy_minutes: u128,
        /// Power cycles.
        112 => power_cycles: u128,
        /// Hours powered.
        128 => power_on_hours: u128,
        /// Power losses without shutdown.
        144 => unsafe_shutdowns: u128,
        /// Media and data integrity errors.
        160 => media_errors: u128,
        /// Entries of the error log over the life of the controller.
        176 => error_log_entries: u128,
        /// Time above the warning temperature, in minutes.
        192 => warning_temperature_minutes: u32,
        /// Time above the critical temperature, in minutes.
        196 => critical_temperature_minutes: u32,
        /// Temperature sensors in kelvins; 0 is not implemented.
        200 => sensors_kelvin: [u16; 8],
        /// Thermal management transitions, light and heavy.
        216 => thermal_transitions: [u32; 2],
        /// Time in thermal management, light and heavy, in seconds.
        224 => thermal_time_s: [u32; 2],
    }
}
