//! `vhost-load`: a minimal driver of a virtio block device over vhost-user.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    isolane_bench::main(isolane_bench::vhost_load::run)
}
