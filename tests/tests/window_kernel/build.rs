//! The module, made once for each version of its source.

use std::path::PathBuf;

use sluice_tests::guest::module::{Kernel, kernel_folder, sources};
use sluice_tests::suite::Verdict;

/// The module.
pub fn driver(kernel: &Kernel) -> Verdict<PathBuf> {
    let folder = build(kernel, "window-module", &["modules"])?;
    Ok(folder.join("sluice_window.ko"))
}

/// Compiles only: these kernels are made without bridges, so there is nothing to link with.
pub fn bridge_compiles(kernel: &Kernel) -> Verdict {
    build(kernel, "window-bridge", &["SW_NTB=1", "sw_ntb.o"]).map(drop)
}

/// Warnings are errors, those of `W=1` as well.
fn build(kernel: &Kernel, what: &str, targets: &[&str]) -> Verdict<PathBuf> {
    let header = "include/uapi/sluice_window.h";
    let mut files = sources(&kernel_folder().join("window"))?;
    files.push((header.to_owned(), kernel_folder().join(header)));
    // The checker of comments wants modules of Perl that are not there.
    let arguments = [&["W=1", "KERNELDOC=true", "cmd_checkdoc="], targets].concat();
    kernel.build(what, &files, &arguments)
}
