//! What the tests of the command share: a scratch directory, a stand-in for the library, and a
//! daemon that answers as it is told.

#![allow(dead_code)]

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_control::message::{FromDaemon, MESSAGE_BYTES_MAX, ToDaemon};
use sluice_sys::{memfd, unix};

/// Longer than anything here takes, on a loaded machine too.
pub const PATIENCE: Duration = Duration::from_secs(30);

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

    /// `sluice` with arguments, away from the installation, daemon and settings of the machine.
    pub fn sluice<const N: usize>(&self, arguments: [&str; N]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
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

/// The real daemon, built if need be: it belongs to another package, which the build of these
/// tests does not include.
pub fn real_daemon() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_sluice")).parent().unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "build",
        "--quiet",
        "-p",
        "sluice-daemon",
        "--bin",
        "sluiced",
    ]);
    if folder.ends_with("release") {
        command.arg("--release");
    }
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TARGET_DIR", folder.parent().unwrap());
    assert!(
        command.status().unwrap().success(),
        "sluiced does not build"
    );
    folder.join("sluiced")
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

/// What a stand-in daemon does with a question.
#[derive(Clone)]
pub enum Manner {
    /// Answers, with this status document.
    Answers(String),
    /// Never accepts.
    Hangs,
}

/// A stand-in daemon on a thread; ends when it is dropped.
pub struct Daemon {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Held so that a daemon that hangs keeps its socket.
    _listener: Option<unix::Fd>,
}

impl Daemon {
    pub fn start(socket: &Path, manner: Manner) -> Self {
        let listener = unix::seqpacket().unwrap();
        unix::bind(listener.raw(), socket.as_os_str().as_bytes()).unwrap();
        unix::listen(listener.raw(), 8).unwrap();
        let end = Arc::new(AtomicBool::new(false));
        match manner {
            Manner::Hangs => Self {
                end,
                thread: None,
                _listener: Some(listener),
            },
            Manner::Answers(document) => {
                let ended = Arc::clone(&end);
                let socket = socket.to_owned();
                let thread = std::thread::spawn(move || {
                    serve(&listener, &ended, &document);
                    let _ = fs::remove_file(socket);
                });
                Self {
                    end,
                    thread: Some(thread),
                    _listener: None,
                }
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &unix::Fd, end: &AtomicBool, document: &str) {
    while !end.load(Ordering::Relaxed) {
        if !unix::wait_readable(listener.raw(), 20).unwrap() {
            continue;
        }
        let peer = unix::accept(listener.raw()).unwrap();
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        if !unix::wait_readable(peer.raw(), 1000).unwrap() {
            continue;
        }
        let length = unix::receive_with_fds(peer.raw(), &mut buffer).unwrap().len;
        let Ok(question) = ToDaemon::decode(&buffer[..length]) else {
            continue;
        };
        let pong = FromDaemon::Pong {
            pid: std::process::id(),
            clients: 1,
        };
        let mut out = [0; MESSAGE_BYTES_MAX];
        match question {
            ToDaemon::Status => {
                let memory = memfd::create(c"status").unwrap();
                memfd::set_len(memory.raw(), document.len() as u64).unwrap();
                memfd::write_at(memory.raw(), document.as_bytes(), 0).unwrap();
                let report = FromDaemon::Report {
                    bytes: document.len() as u64,
                };
                unix::send_with_fds(peer.raw(), report.encode(&mut out), &[memory.raw()]).unwrap();
            }
            ToDaemon::Shutdown => {
                unix::send_with_fds(peer.raw(), pong.encode(&mut out), &[]).unwrap();
                return;
            }
            _ => {
                // The asker may have gone.
                let _ = unix::send_with_fds(peer.raw(), pong.encode(&mut out), &[]);
            }
        }
    }
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Text with every run of white space as one blank: independent of where lines were broken.
pub fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Waits until `condition` holds; a test that waits in vain fails.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ends a child when the test ends, however it ends.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
