//! Maximum speeds of namespaces: in a file, in the target, and in a reply on the control socket.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use isolane_config::{Number, Qos, Size, Subsystem};
use isolane_target::QosConfig;
use serde_json::{Value, json};

/// Returns the speeds of the namespaces of a subsystem, by ID.
pub fn plan(subsystem: &Subsystem) -> BTreeMap<u32, QosConfig> {
    let namespaces = subsystem.namespaces.iter().flat_map(|all| all.values());
    namespaces.filter_map(|one| Some((one.nsid.get(), to_target(one.qos.as_ref()?)))).collect()
}

fn to_target(qos: &Qos) -> QosConfig {
    QosConfig {
        iops: number(qos.iops),
        read_iops: number(qos.read_iops),
        write_iops: number(qos.write_iops),
        bytes: size(qos.bytes),
        read_bytes: size(qos.read_bytes),
        write_bytes: size(qos.write_bytes),
        burst: qos.burst.map_or(QosConfig::default().burst, |burst| burst.get()),
    }
}

fn number<const MIN: u32, const MAX: u32>(number: Option<Number<MIN, MAX>>) -> Option<NonZeroU64> {
    NonZeroU64::new(number?.get().into())
}

fn size<const MIN: u64>(size: Option<Size<MIN>>) -> Option<NonZeroU64> {
    NonZeroU64::new(size?.bytes())
}

/// Returns the limits that are set; numbers are per second.
pub fn to_json(qos: &QosConfig) -> Value {
    let QosConfig { iops, read_iops, write_iops, bytes, read_bytes, write_bytes, burst } = *qos;
    let rates = [
        ("iops", iops),
        ("read_iops", read_iops),
        ("write_iops", write_iops),
        ("bytes", bytes),
        ("read_bytes", read_bytes),
        ("write_bytes", write_bytes),
    ];
    let set = rates.into_iter().filter_map(|(name, rate)| Some((name.to_owned(), json!(rate?.get()))));
    let burst = Some(burst.as_millis() as u64).filter(|ms| *ms > 0);
    set.chain(burst.map(|ms| ("burst_ms".to_owned(), json!(ms)))).collect()
}
