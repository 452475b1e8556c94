//! The module, made once for each version of its source.

use std::path::PathBuf;

use sluice_tests::guest::module::{Kernel, kernel_folder, sources};
use sluice_tests::guest::window;
use sluice_tests::suite::Verdict;

/// Other hosts are dead to the modules after so long, seconds: theirs here are threads and emulated machines, which may
/// stand still for longer than the three that it is elsewhere.
pub const SILENCE_S: u64 = 10;

/// The module, and a client of it (`client_test.c`).
pub struct Modules {
    pub driver: PathBuf,
    pub client: PathBuf,
}

pub fn modules(kernel: &Kernel) -> Verdict<Modules> {
    let targets = ["SW_TEST=1", &silence(), "modules"];
    let folder = build(kernel, "window-module", &targets)?;
    Ok(Modules {
        driver: folder.join("sluice_window.ko"),
        client: folder.join("sluice_window_test.ko"),
    })
}

/// `kernel/window` and `kernel/rdma`, together.
pub struct Both {
    pub driver: PathBuf,
    pub rdma: PathBuf,
    /// `users_test.c`.
    pub test: PathBuf,
}

pub fn rdma(kernel: &Kernel) -> Verdict<Both> {
    let targets = ["SR_TEST=1", &silence(), "modules"];
    let folder = window::modules(kernel, "rdma-module", &arguments(&targets))?;
    Ok(Both {
        driver: folder.join("window/sluice_window.ko"),
        rdma: folder.join("rdma/sluice_rdma.ko"),
        test: folder.join("rdma/sluice_rdma_test.ko"),
    })
}

fn silence() -> String {
    format!("SW_SILENCE_S={SILENCE_S}")
}

/// Compiles only: these kernels are made without bridges, so there is nothing to link with.
pub fn bridge_compiles(kernel: &Kernel) -> Verdict {
    build(kernel, "window-bridge", &["SW_NTB=1", "sw_ntb.o"]).map(drop)
}

/// Warnings are errors, those of `W=1` as well.
fn build(kernel: &Kernel, what: &str, targets: &[&str]) -> Verdict<PathBuf> {
    let mut files = sources(&kernel_folder().join("window"))?;
    for header in [
        "include/uapi/sluice_window.h",
        "include/sluice_window_client.h",
    ] {
        files.push((header.to_owned(), kernel_folder().join(header)));
    }
    kernel.build(what, &files, &arguments(targets))
}

/// The checker of comments wants modules of Perl that are not there.
fn arguments<'a>(targets: &[&'a str]) -> Vec<&'a str> {
    [&["W=1", "KERNELDOC=true", "cmd_checkdoc="], targets].concat()
}
