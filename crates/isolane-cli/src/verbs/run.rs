//! `isolane verbs run`: starts an unmodified RDMA program.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::environment::{Environment, Options};
use crate::failure::{Failure, IoContext};
use crate::logging;
use crate::preload::{Calls, check_program, prepend};

/// Run a program with RDMA devices over TCP
///
/// The program and its children find one device for each local address, with the interface of libibverbs. No driver,
/// network card, or privilege is needed. The libraries of the devices are libibverbs.so.1 and librdmacm.so.1, in the
/// directory that `isolane verbs libs` prints. If they lack a symbol version of the installed ones, only
/// libisolane_ibverbs.so, or the file that ISOLANE_IBVERBS names, is preloaded. The system loads it neither into programs that are linked statically
/// nor into set-user-ID programs. Programs that are built with AddressSanitizer run with
/// ASAN_OPTIONS=verify_asan_link_order=0, because they otherwise refuse preloaded libraries. FI_PROVIDER_PATH also names
/// the directory of the provider of libfabric, if that is installed.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the subcommand: replaces this process.
pub fn run(args: &Args) -> Result<(), Failure> {
    let environment = Environment::new(&args.options)?;
    if let (path, Calls::Static) = check_program(&args.program[0])? {
        log::warn!(
            "{} is linked statically: only programs that it starts have RDMA devices; link it dynamically",
            path.display()
        );
    }
    let mut program = Command::new(&args.program[0]);
    program.args(&args.program[1..]);
    for (name, first) in &environment.lists {
        program.env(name, prepend(first, env::var_os(name).as_deref()));
    }
    program.envs(environment.settings);
    // The other program ends this one's threads.
    logging::finish(None);
    let error = program.exec();
    Err(error).io_context(format!("cannot run {}", args.program[0].display()))
}
