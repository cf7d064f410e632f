//! Serves volumes at 127.0.0.1:4420 until standard input ends, then prints the counters.
//!
//! ```console
//! $ cargo run -p isolane-target --example serve -- mem:1G disk.img,size=10G,ro
//! ```

use std::error::Error;
use std::io::Read;

use isolane_target::{Operation, Target, TargetConfig};
use isolane_volume::{open, spec};

const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:5b5e4a9c-8f53-4d5b-9a68-0d6d1c8f1f5e";

fn main() -> Result<(), Box<dyn Error>> {
    let mut config = TargetConfig::new(NQN.parse()?);
    config.listen = vec!["127.0.0.1:4420".parse()?];
    for (nsid, text) in (1..).zip(std::env::args().skip(1)) {
        config.subsystems[0].volumes.push((nsid, open(&spec::parse(&text)?)?));
    }
    let target = Target::start(config)?;
    for address in target.local_addrs() {
        println!("listening on {address}, {NQN}");
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    for namespace in &target.counters().namespaces {
        for operation in Operation::ALL {
            println!(
                "namespace {}: {} {}",
                namespace.nsid,
                namespace.get(operation).commands,
                operation.name()
            );
        }
    }
    Ok(target.shutdown(Target::SHUTDOWN_TIMEOUT).into_result()?)
}
