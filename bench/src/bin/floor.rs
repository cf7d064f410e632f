//! `floor`: rate and round trip of plain TCP with the byte counts of NVMe/TCP.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    isolane_bench::main(isolane_bench::floor::run)
}
