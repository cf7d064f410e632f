//! Prints `docs/snapshot.schema.json`.

#![forbid(unsafe_code)]

fn main() {
    print!("{}", isolane_observe::snapshot::schema());
}
