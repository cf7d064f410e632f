//! `streams`: the cost of a stream of messages, by native socket calls or through an engine.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    isolane_bench::main(isolane_bench::streams::run)
}
