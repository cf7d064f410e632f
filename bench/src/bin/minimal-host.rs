//! `minimal-host`: a minimal NVMe/TCP host that reads, with or without batching of its capsules.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    isolane_bench::main(isolane_bench::minimal_host::run)
}
