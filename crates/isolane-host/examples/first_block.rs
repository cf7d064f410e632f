//! Prints the size of a volume and its first 64 bytes.
//!
//! ```console
//! $ cargo run -p isolane-host --example first_block -- nvme+tcp://127.0.0.1:4420
//! ```

use isolane_host::{BlockingVolume, Error, Options};

fn main() -> Result<(), Error> {
    let uri = std::env::args().nth(1).unwrap_or_default().parse()?;
    let volume = BlockingVolume::connect(&uri, Options::default())?;
    println!("{} bytes in blocks of {}", volume.size(), volume.block_size());

    let mut block = vec![0; volume.block_size() as usize];
    volume.read_at(&mut block, 0)?;
    for (row, bytes) in block.chunks(16).take(4).enumerate() {
        println!("{:08x}  {}", row * 16, bytes.iter().map(|byte| format!("{byte:02x} ")).collect::<String>());
    }
    volume.close();
    Ok(())
}
