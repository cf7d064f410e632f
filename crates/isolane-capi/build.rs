//! Sets the soname of the shared library to its name and major version.
//!
//! Invariant: a linked program finds the library by this name in the search path of the system.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libisolane.so.{major}");
}
