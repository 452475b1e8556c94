//! The module, made once for each version of its source.

use std::path::PathBuf;

use sluice_tests::guest::module::{Kernel, kernel_folder, sources};
use sluice_tests::suite::Verdict;

/// The module, and a client of it (`client_test.c`).
pub struct Modules {
    pub driver: PathBuf,
    pub client: PathBuf,
}

pub fn modules(kernel: &Kernel) -> Verdict<Modules> {
    let folder = build(kernel, "window-module", &["SW_TEST=1", "modules"])?;
    Ok(Modules {
        driver: folder.join("sluice_window.ko"),
        client: folder.join("sluice_window_test.ko"),
    })
}

/// `kernel/window` and `kernel/rdma`, together.
pub struct Both {
    pub driver: PathBuf,
    pub rdma: PathBuf,
}

pub fn rdma(kernel: &Kernel) -> Verdict<Both> {
    let mut files = vec![("Kbuild".to_owned(), kernel_folder().join("Kbuild"))];
    for part in ["window", "rdma", "include", "include/uapi"] {
        let found = sources(&kernel_folder().join(part))?;
        files.extend(
            found
                .into_iter()
                .map(|(name, path)| (format!("{part}/{name}"), path)),
        );
    }
    let folder = make(kernel, "rdma-module", &files, &["modules"])?;
    Ok(Both {
        driver: folder.join("window/sluice_window.ko"),
        rdma: folder.join("rdma/sluice_rdma.ko"),
    })
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
    make(kernel, what, &files, targets)
}

fn make(
    kernel: &Kernel,
    what: &str,
    files: &[(String, PathBuf)],
    targets: &[&str],
) -> Verdict<PathBuf> {
    // The checker of comments wants modules of Perl that are not there.
    let arguments = [&["W=1", "KERNELDOC=true", "cmd_checkdoc="], targets].concat();
    kernel.build(what, files, &arguments)
}
