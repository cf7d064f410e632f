//! Gives the library in C the name by which a program that was linked with it looks for it, however it was linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libisolane.so");
}
