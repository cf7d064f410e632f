//! Readers of `/proc` and `/sys` below a replaceable root.
//!
//! [`Root`] opens files, and free functions `decode_…` parse their text. Every read has a limit in bytes.
//!
//! Invariant: no content of a file causes a panic, and a file that cannot be read or parsed is an error, never a
//! default.

mod access;
mod cgroup;
mod cpu;
mod decode;
mod disk;
mod ethtool;
mod fields;
mod interrupts;
mod net;
mod pci_config;
mod read_error;
mod root;
mod route;
mod task;
mod topology;
mod volume_file;

pub use access::{Accesses, ERRORS, FIRST_READING};
pub use cgroup::{
    Cgroup, CgroupMount, Membership, Pressure, decode_cfs_quota, decode_cgroup_membership,
    decode_cgroup_mounts, decode_counter, decode_cpu_max, decode_pressure,
};
pub use cpu::{CpuTimes, decode_cpu_times};
pub use decode::{decode_choice, decode_cpu_list, decode_cpu_mask, decode_number, decode_numbers, show_cpus};
pub use disk::{DiskStats, ProcessIo, decode_diskstats, decode_process_io};
pub use ethtool::{CardPart, Settings, decode_ethtool, decode_settings};
pub use interrupts::{InterruptLine, Interrupts, IrqLine, decode_counts, decode_interrupts};
pub use net::{ProtocolCounters, Softnet, decode_protocol_counters, decode_softnet, decode_tcp_memory};
pub use pci_config::{PciControl, decode_pci_config, pci_control};
pub(crate) use read_error::if_missing;
pub use read_error::{Malformed, ReadError, Reason};
pub use root::{Root, SMALL};
pub use route::{Route, decode_ipv6_routes, decode_routes, device_of_peer};
pub use task::{
    MAX_TASKS, SchedStat, Task, TaskStat, decode_file_limit, decode_schedstat, decode_status_field,
    decode_task_stat, tasks,
};
pub use topology::{
    BlockDevice, PciFunction, decode_device_number, decode_node, device_of, devices_beneath, pci_functions,
};
pub use volume_file::{VolumeFile, decode_volume_file};
