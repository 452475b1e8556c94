//! What the tests of the command share: a scratch directory, a stand-in for the library, and a
//! daemon that answers as it is told.

#![allow(dead_code)]

mod scratch;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_control::message::{FromDaemon, MESSAGE_BYTES_MAX, ToDaemon};
use sluice_sys::{memfd, unix};

pub use scratch::*;

impl Scratch {
    /// `sluice` with arguments, away from the installation, daemon and settings of the machine.
    pub fn sluice<const N: usize>(&self, arguments: [&str; N]) -> Command {
        self.command(Path::new(env!("CARGO_BIN_EXE_sluice")), arguments)
    }
}

/// The real daemon, which belongs to another package.
pub fn real_daemon() -> PathBuf {
    let sluice = Path::new(env!("CARGO_BIN_EXE_sluice"));
    scratch::built(sluice, "sluiced")
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
        // It may get no processor between connecting and asking.
        let patience_ms = i32::try_from(PATIENCE.as_millis()).unwrap();
        if !unix::wait_readable(peer.raw(), patience_ms).unwrap() {
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
