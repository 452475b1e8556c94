//! A directory for a test, with an installation of its own: for the tests of `sluice` and of the
//! programs behind it.

#![allow(dead_code)]

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Longer than anything here takes, on a loaded machine too.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A directory of its own for a test, removed at its end.
pub struct Scratch(pub PathBuf);

static SCRATCH_NUMBER: AtomicU32 = AtomicU32::new(0);

impl Scratch {
    pub fn new() -> Self {
        let number = SCRATCH_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("sluice-cli-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("control.sock")
    }

    /// `sluice`, which is at this path, with arguments, away from the installation, daemon and
    /// settings of the machine.
    pub fn command<const N: usize>(&self, sluice: &Path, arguments: [&str; N]) -> Command {
        let mut command = Command::new(sluice);
        for (name, _) in std::env::vars_os() {
            if name.as_bytes().starts_with(b"SLUICE_") {
                command.env_remove(name);
            }
        }
        command
            .env("SLUICE_LIBDIR", &self.0)
            .env("SLUICE_SOCKET", self.socket())
            .env("TMPDIR", &self.0)
            .env_remove("LD_PRELOAD")
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    /// Puts a library in the installation's place that keeps the promises of the real one to
    /// this command: it announces itself, and writes a line of statistics at the end.
    pub fn with_library(self) -> Self {
        let source = self.path("library.c");
        fs::write(&source, LIBRARY_SOURCE).unwrap();
        let version = format!("-DVERSION=\"{}\"", env!("CARGO_PKG_VERSION"));
        let library = self.path("libsluice_preload.so");
        compile(&["-shared", "-fPIC", &version], &source, &library);
        self
    }
}

/// A program of another package beside the one of these tests, built if need be: the build of these
/// tests does not include it.
pub fn built(beside: &Path, program: &str) -> PathBuf {
    let folder = beside.parent().unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // With a test, so that features are those with which the tests of all packages are built: what is
    // needed is there already.
    command.args(["build", "--quiet", "--workspace", "--bin", program]);
    command.args(["--test", "window"]);
    if folder.ends_with("release") {
        command.arg("--release");
    }
    // What cargo tells these tests of their package makes build scripts run again.
    for (name, _) in std::env::vars_os() {
        let bytes = name.as_bytes();
        let is_theirs = [&b"CARGO_MANIFEST_"[..], b"CARGO_PKG_", b"OUT_DIR"];
        if is_theirs.iter().any(|start| bytes.starts_with(start)) {
            command.env_remove(name);
        }
    }
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TARGET_DIR", folder.parent().unwrap());
    assert!(
        command.status().unwrap().success(),
        "{program} does not build"
    );
    folder.join(program)
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const LIBRARY_SOURCE: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void append(int fd, const char *text)
{
    if (write(fd, text, strlen(text)) < 0)
        abort();
}
__attribute__((constructor)) static void begin(void)
{
    const char *fd = getenv("SLUICE_PROBE_FD");
    if (fd)
        append(atoi(fd), VERSION "\nlanes\n");
}
__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("SLUICE_STATS_FILE");
    if (!path)
        return;
    int fd = open(path, O_WRONLY | O_APPEND);
    if (fd < 0)
        abort();
    append(fd, "{\"pid\":1,\"program\":\"p\",\"connections\":2,\"laned\":1,"
               "\"lane_rx_bytes\":2048,\"lane_tx_bytes\":0,\"tcp_rx_bytes\":0,"
               "\"tcp_tx_bytes\":9,\"switches\":1,\"sleeps\":3,\"spins\":4,"
               "\"reasons\":{\"too little traffic yet\":1}}\n");
    close(fd);
}
"#;

/// Compiles a C source with the compiler that the build needs anyway.
pub fn compile(flags: &[&str], source: &Path, output: &Path) {
    let status = Command::new("cc")
        .args(flags)
        .arg("-o")
        .args([output, source])
        .status()
        .unwrap();
    assert!(status.success(), "cc {source:?}");
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
