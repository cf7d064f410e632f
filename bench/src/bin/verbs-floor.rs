//! `verbs-floor`: latency and throughput of plain TCP with the bytes of RDMA operations.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    isolane_bench::main(isolane_bench::verbs_floor::run)
}
