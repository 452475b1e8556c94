//! A program that opens the library itself and closes it again (dlclose(3)) must not lose what the
//! C library calls later: handlers for fork, for the end of threads and of the process.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The list of hooks is the library's own (src/hooks/mod.rs).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,start-stop-visibility=hidden");
    println!("cargo:rerun-if-changed=build.rs");
}
