//! `isolane verbs libs`: prints the directory of the libraries.

use std::path::PathBuf;

use super::libraries;
use crate::failure::Failure;
use crate::output;

/// Print the directory of libibverbs.so.1 and librdmacm.so.1
///
/// Both have the symbol versions of rdma-core, and are one file with two names. Variables such as NCCL_IBVERBS_LIB and
/// MSCCLPP_IBV_SO take the path of the file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Link the libraries into this directory with a C compiler, from libisolane_ibverbs.a next to this program
    #[arg(long, value_name = "DIRECTORY")]
    link: Option<PathBuf>,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let directory = match &args.link {
        Some(directory) => libraries::link_into(directory).map(|()| directory.clone())?,
        None => libraries::find()?,
    };
    output::write_stdout(format!("{}\n", directory.display()).as_bytes())
}
