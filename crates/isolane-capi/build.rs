//! Gives the library in C the name, with the version of its interface, by which a program that was linked with it
//! looks for it, however it was linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libisolane.so.{major}");
}
