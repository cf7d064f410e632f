//! Prints `docs/DOCTOR.md`.

#![forbid(unsafe_code)]

fn main() {
    print!("{}", isolane_inspect::doctor::document());
}
