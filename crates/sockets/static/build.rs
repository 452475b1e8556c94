//! Assembles what must be the last thread-local storage of the program (`thread.s` says why), and has it linked
//! behind everything else.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

const SOURCE: &str = "src/thread.s";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-env-changed=CC");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let object = out.join("thread.o");
    // The compiler that links Rust programs can assemble.
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut assemble = Command::new(&compiler);
    assemble.args(["-c", "-o"]).arg(&object).arg(SOURCE);
    let done = assemble.status().expect("a C compiler runs");
    assert!(done.success(), "{SOURCE} cannot be assembled");
    let size = fs::metadata(&object).map_or(0, |file| file.len());
    assert!(size > 0, "the compiler wrote nothing");
    println!("cargo:rustc-link-arg-bins={}", object.display());
    // Nobody else's symbols: the C library's 'syscall' is the library's hook where that is loaded.
    println!("cargo:rustc-link-arg-bins=-Wl,-z,now");
}
