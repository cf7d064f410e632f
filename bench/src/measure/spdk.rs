//! SPDK's target and its perf tool.
//!
//! Zero-copy send is off on both sides: over loopback the kernel copies in any case. Without huge pages in
//! the machine both run without them; what the target serves is then memory that the first access to each
//! page has yet to get from the kernel. Perf hides that in the second that it warms up for, our host, which
//! does not, would measure it.

use std::fs;
use std::io;
use std::time::Duration;

use serde_json::{Value, json};

use super::entrant::Sockets;
use super::figures::{Figure, Sample};
use super::isolane;
use super::lab::{Lab, START_LIMIT, VOLUME_BYTES, free_port};
use super::row::Load;
use super::start::{NQN, Serving, listening};

/// Starts nvmf_tgt with one memory device that was written, and room for so many I/O connections.
pub fn serve(lab: &Lab, sockets: Sockets, connections: u16) -> io::Result<Serving> {
    let port = free_port()?;
    let configuration = lab.file(&format!("spdk-{port}.json"));
    fs::write(&configuration, configuration_of(sockets, port).to_string())?;
    let program = lab.free_program(lab.spdk_program("nvmf_tgt"));
    let memory = memory(target_mib(connections));
    let program =
        program.args(&format!("-m [{}] --no-pci --disable-cpumask-locks {memory}", lab.target_core));
    let program = program.arg("-r").arg(lab.file(&format!("spdk-{port}.sock")));
    let serving = program.arg("-c").arg(&configuration).start().and_then(|run| listening(run, port));
    // The listener is the last thing it reads there.
    fs::remove_file(&configuration)?;
    let serving = serving?;
    isolane::fill(lab, serving.port)?;
    Ok(serving)
}

/// Without one perf leaves it empty, which only its own target takes.
const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:be7c4000-0000-4000-8000-0000000000ff";

/// Runs perf; the queue depth it is given is that of all connections together, which it hands out in turn:
/// one connection may have more under way than another for a while.
pub fn measure(
    lab: &Lab,
    port: u16,
    sockets: Sockets,
    load: &Load,
    arguments: &str,
    seconds: f64,
) -> io::Result<Sample> {
    let (depth, connections, bytes) = (load.under_way(), load.connections, load.block_bytes);
    let whole_seconds = seconds.ceil();
    let program = lab.free_program(lab.spdk_program("spdk_nvme_perf"));
    let program = program.args(&format!(
        "-c [{}] -q {depth} -P {connections} -o {bytes} -w {} -a 1 -t {whole_seconds} {}",
        lab.host_core,
        load.pattern(),
        memory(512),
    ));
    let name = sockets.name();
    let program = program.args(&format!("-S {name} -z {name}")).args(arguments).arg("-r").arg(format!(
        "trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{port} subnqn:{NQN} hostnqn:{HOST_NQN}"
    ));
    let said = program.run(START_LIMIT + Duration::from_secs_f64(2.0 * whole_seconds + 1.0))?;
    parse(&said).ok_or_else(|| io::Error::other(format!("spdk_nvme_perf shows no total: {said}")))
}

/// Its last table ends with `Total : IOPS MiB/s Average min max`.
fn parse(said: &str) -> Option<Sample> {
    let line = said.lines().rev().find(|line| line.trim_start().starts_with("Total"))?;
    let numbers: Vec<f64> = line.split(':').nth(1)?.split_whitespace().flat_map(str::parse).collect();
    let figures = [(Figure::Rate, *numbers.first()?), (Figure::Mean, *numbers.get(2)?)];
    Some(figures.map(|(figure, value)| (figure.key().to_owned(), value)).into())
}

/// What the target may take: it resets a connection that it has no memory left for.
fn target_mib(connections: u16) -> u32 {
    1024.max(VOLUME_MIB + POOLS_MIB + CONNECTION_MIB * u32::from(connections))
}

const VOLUME_MIB: u32 = (VOLUME_BYTES >> 20) as u32;
/// Buffers that it keeps whatever it serves, and some.
const POOLS_MIB: u32 = 256;
/// A connection gets buffers for in-capsule data and PDUs of 256 commands, whatever its queue's size, which
/// takes about 2 MiB.
const CONNECTION_MIB: u32 = 3;

fn memory(size_mib: u32) -> String {
    match has_huge_pages(size_mib) {
        true => format!("-s {size_mib}"),
        false => format!("-s {size_mib} --no-huge"),
    }
}

fn has_huge_pages(size_mib: u32) -> bool {
    let information = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = information.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let free_kib = field("HugePages_Free:").unwrap_or(0) * field("Hugepagesize:").unwrap_or(0);
    free_kib >> 10 >= u64::from(size_mib)
}

fn configuration_of(sockets: Sockets, port: u16) -> Value {
    let call = |method: &str, params: Value| json!({ "method": method, "params": params });
    let sock = [
        call("sock_set_default_impl", json!({ "impl_name": sockets.name() })),
        call(
            "sock_impl_set_options",
            json!({
                "impl_name": sockets.name(),
                "enable_zerocopy_send_server": false,
                "enable_zerocopy_send_client": false,
            }),
        ),
    ];
    let bdev = [call(
        "bdev_malloc_create",
        json!({ "name": "Malloc0", "num_blocks": VOLUME_BYTES / 4096, "block_size": 4096 }),
    )];
    let listen = json!({
        "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port.to_string(),
    });
    let nvmf = [
        call("nvmf_create_transport", json!({ "trtype": "TCP", "max_queue_depth": 256 })),
        call("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true })),
        call("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": { "bdev_name": "Malloc0" } })),
        call("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": listen })),
    ];
    json!({ "subsystems": [
        { "subsystem": "sock", "config": sock },
        { "subsystem": "bdev", "config": bdev },
        { "subsystem": "nvmf", "config": nvmf },
    ] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_perf_is_read() {
        let said = "Device Information : IOPS MiB/s Average min max\n\
                    TCP (addr) NSID 1 from core 1: 820936.33 3206.78 38.95 20.30 912.04\n\
                    ==========\nTotal                 :  820936.33    3206.78      38.95      20.30     912.04\n\n";
        let sample = parse(said).unwrap();
        assert_eq!((sample["iops"], sample["mean_us"]), (820936.33, 38.95));
        assert!(parse("no controller found").is_none());
    }

    #[test]
    fn many_connections_get_more_memory_and_few_what_they_always_had() {
        assert_eq!((target_mib(1), target_mib(16)), (1024, 1024));
        assert_eq!(target_mib(1000), VOLUME_MIB + 3256);
    }
}
