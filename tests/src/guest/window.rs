//! Memory that guests share, and the modules of `kernel/` for it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::guest::module::{Kernel, kernel_folder, program, sources};
use crate::job::command;
use crate::lab::find_sluice;
use crate::suite::{Verdict, ensure};

/// `sluice window serve`. It ends when it is dropped.
pub struct Server {
    child: Child,
    pub socket: PathBuf,
}

impl Server {
    /// At `window.sock` in the folder, of so many bytes (as `--size` has it) and hosts.
    pub fn start(place: &Path, size: &str, hosts: u32) -> Verdict<Server> {
        let socket = place.join("window.sock");
        let mut serve = command(find_sluice()?);
        serve.args(["window", "serve"]).arg(&socket);
        serve.args(["--size", size, "--hosts", &hosts.to_string()]);
        serve.stdout(Stdio::piped());
        let mut child = serve.spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            let mut reader = BufReader::new(stdout);
            reader.read_line(&mut line)?;
            // It goes on to say how many peers there are.
            std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        }
        let server = Server { child, socket };
        ensure(server.socket.exists(), || line)?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Errors say that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `kernel/window` and `kernel/rdma`, made together: the folder with `window/sluice_window.ko` and
/// `rdma/sluice_rdma.ko`.
pub fn modules(kernel: &Kernel, what: &str, arguments: &[&str]) -> Verdict<PathBuf> {
    let mut files = vec![("Kbuild".to_owned(), kernel_folder().join("Kbuild"))];
    for part in ["window", "rdma", "include", "include/uapi"] {
        let found = sources(&kernel_folder().join(part))?;
        let named = |(name, path)| (format!("{part}/{name}"), path);
        files.extend(found.into_iter().map(named));
    }
    kernel.build(what, &files, arguments)
}

/// The provider of `kernel/rdma` for the distribution's libibverbs, where `place` is.
pub fn provider(place: &Path) -> Verdict<PathBuf> {
    let source = kernel_folder().join("rdma/provider/sluice.c");
    let include = format!("-I{}", kernel_folder().join("include").display());
    let options = [
        "-O2",
        "-shared",
        "-fPIC",
        &include,
        "-Wl,--no-as-needed",
        "-libverbs",
    ];
    program(place, "libsluice-rdmav34.so", &[source], &options)
}
