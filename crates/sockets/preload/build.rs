//! How the library is linked.
//!
//! A program that opens it itself and closes it again (dlclose(3)) must not lose what the
//! C library calls later: handlers for fork, for the end of threads and of the process.
//!
//! The unwinder is linked into it. As a library of its own, libgcc_s.so.1, it would be loaded into each program that
//! is started: 0.15 ms of one that takes 0.9 ms, most of it for CPUID, which traps to the hypervisor of a virtual machine.

use std::env;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The list of hooks is the library's own (src/hooks/mod.rs).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,start-stop-visibility=hidden");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    if let Some(folder) = unwinder() {
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
}

/// A folder where the linker finds the archive of GCC's unwinder by the name of the library, before that. None: a compiler
/// without it, and the library is loaded.
fn unwinder() -> Option<PathBuf> {
    let linker = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let found = Command::new(linker)
        .arg("-print-file-name=libgcc_eh.a")
        .output()
        .ok()?;
    let found = String::from_utf8(found.stdout).ok()?;
    // A compiler that does not know it says the name alone.
    let archive = Path::new(found.trim_end());
    if !archive.is_absolute() || !archive.exists() {
        return None;
    }
    let folder = PathBuf::from(env::var_os("OUT_DIR")?).join("unwinder");
    std::fs::create_dir_all(&folder).ok()?;
    let link = folder.join("libgcc_s.a");
    let _ = std::fs::remove_file(&link);
    symlink(archive, &link).ok()?;
    Some(folder)
}
